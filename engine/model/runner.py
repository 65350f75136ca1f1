"""Runs a step: from the scheduler's plan to a flat batch, through the decoder, to tokens.

A failure of one request (values that are not finite, a token outside the vocabulary) fails that request alone and
leaves nothing of it in the pool.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from engine.core.request import Row, StepPlan, StepResult
from engine.model.attention import Span, build_layout, sort_key
from engine.model.config import ModelConfig
from engine.model.decoder import Batch
from engine.model.errors import ModelError, human_bytes
from engine.model.kv_store import KVStore
from engine.model.load import LoadedModel
from engine.model.machine import DTYPES, available_memory, physical_cores
from engine.model.sampling import NOT_FINITE, sample
from engine.settings import BLOCK_SIZE


class Runner:
    """Owns the KV store and computes plans, one at a time, from one thread.

    ``kv_dtype`` "auto" takes the type of the weights. ``threads`` None takes the physical cores; the number is set for
    the whole process. Raises ModelError when the pool does not fit into memory.
    """

    def __init__(self, model: LoadedModel, num_blocks: int, kv_dtype: str = "auto", threads: int | None = None) -> None:
        if kv_dtype not in ("auto", *DTYPES):
            raise ModelError(f"unknown type of the KV pool {kv_dtype!r}: use auto, {' or '.join(DTYPES)}")
        self.kv_dtype = model.weights if kv_dtype == "auto" else kv_dtype
        self.device = model.device
        self.threads = threads or physical_cores()
        torch.set_num_threads(self.threads)
        self._config = model.config
        self._decoder = model.decoder
        wanted = kv_pool_bytes(model.config, num_blocks, self.kv_dtype)
        free = available_memory(model.device)
        if wanted > free:
            per_token = model.config.kv_bytes_per_token(DTYPES[self.kv_dtype].itemsize)
            raise ModelError(
                f"the KV pool of {num_blocks * BLOCK_SIZE} tokens takes {human_bytes(wanted)} ({human_bytes(per_token)}"
                f" per token), but only {human_bytes(free)} are available beside the weights. At most"
                f" {free // (per_token * BLOCK_SIZE) * BLOCK_SIZE} tokens fit: lower --kv-tokens, --slots or --context."
            )
        with torch.inference_mode():
            self._store = KVStore(model.config, num_blocks, DTYPES[self.kv_dtype], model.device)

    @property
    def kv_bytes(self) -> int:
        """Bytes of the KV pool."""
        return self._store.bytes_allocated

    def run(self, plan: StepPlan) -> StepResult:
        """Compute all rows of a plan and write their K and V.

        The result holds a token for each sampling row that succeeded, and a reason for each row (sampling or not) that
        failed. Raises ValueError when the plan does not fit the pool, and what torch raises when the step fails.
        """
        result = StepResult()
        rows = []
        for row in plan.rows:
            reason = self._refusal(row)
            if reason is None:
                rows.append(row)
            else:
                result.failures[row.request.id] = reason
        if rows:
            with torch.inference_mode():
                self._compute(rows, result)
        return result

    def _refusal(self, row: Row) -> str | None:
        """Why a row cannot be computed, or None."""
        tokens = row.request.token_ids[row.start : row.start + row.count]
        if len(tokens) != row.count or row.count < 1:
            return f"the plan asks for tokens {row.start} to {row.start + row.count - 1}, which are not there"
        if min(tokens) < 0 or max(tokens) >= self._config.vocab_size:
            return f"a token id is outside the vocabulary of {self._config.vocab_size}"
        if row.start + row.count > self._config.max_positions:
            return f"position {row.start + row.count - 1} is beyond the {self._config.max_positions} of the model"
        return None

    def _compute(self, rows: Sequence[Row], result: StepResult) -> None:
        spans = [Span(row.start, row.count, row.request.block_ids) for row in rows]
        order = sorted(range(len(rows)), key=lambda index: sort_key(spans[index]))
        rows, spans = [rows[index] for index in order], [spans[index] for index in order]
        ends = np.cumsum([row.count for row in rows])
        batch, samplers = self._batch(rows, spans, ends)
        try:
            logits, finite = self._decoder.forward(batch, self._store)
            good = finite.cpu().numpy()
        except BaseException:
            self._store.clear(batch.token_rows)  # half-written values must not stay
            raise
        if not good.all():
            self._fail(rows, ends, good, batch, result)
        if not samplers:
            return
        sampled = sample(logits, [row.request for row in samplers])
        for row, token, fine, logprobs in zip(samplers, sampled.tokens, sampled.finite, sampled.logprobs, strict=True):
            if row.request.id in result.failures:
                continue
            if not fine:
                result.failures[row.request.id] = NOT_FINITE
                continue
            result.tokens[row.request.id] = token
            if logprobs is not None:
                result.logprobs[row.request.id] = logprobs

    def _batch(self, rows: Sequence[Row], spans: Sequence[Span], ends: np.ndarray) -> tuple[Batch, list[Row]]:
        """The flat batch of rows in order, and those of them that sample, in the order of ``logit_rows``."""
        token_ids: list[int] = []
        for row in rows:
            token_ids += row.request.token_ids[row.start : row.start + row.count]
        layout = build_layout(spans, self._store, self.device)
        positions = np.concatenate([np.arange(span.start, span.start + span.count) for span in spans])
        blocks = np.concatenate(
            [
                np.asarray(span.blocks, dtype=np.int64)[np.arange(span.start, span.start + span.count) // BLOCK_SIZE]
                if span.count > 1
                else [span.blocks[span.start // BLOCK_SIZE]]
                for span in spans
            ]
        )
        slots = torch.from_numpy(blocks * BLOCK_SIZE + positions % BLOCK_SIZE).to(self.device)
        sampling = [index for index, row in enumerate(rows) if row.samples]
        batch = Batch(
            token_ids=torch.tensor(token_ids, dtype=torch.int64, device=self.device),
            positions=torch.from_numpy(positions).to(self.device),
            token_rows=self._store.token_rows(slots),
            layout=layout,
            logit_rows=torch.from_numpy(ends[sampling] - 1).to(self.device),
        )
        return batch, [rows[index] for index in sampling]

    def _fail(self, rows: Sequence[Row], ends: np.ndarray, good: np.ndarray, batch: Batch, result: StepResult) -> None:
        """Fail the requests with a token that is not finite and clear what they wrote in this step."""
        token_rows = batch.token_rows.view(len(good), -1)
        for row, end in zip(rows, ends, strict=True):
            part = slice(int(end) - row.count, int(end))
            if not good[part].all():
                result.failures[row.request.id] = NOT_FINITE
                self._store.clear(token_rows[part].flatten())


def kv_pool_bytes(config: ModelConfig, num_blocks: int, kv_dtype: str) -> int:
    """Bytes of a pool of ``num_blocks`` blocks; ``kv_dtype`` is "fp32" or "bf16"."""
    return config.kv_bytes_per_token(DTYPES[kv_dtype].itemsize) * num_blocks * BLOCK_SIZE
