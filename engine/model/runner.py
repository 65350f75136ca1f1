"""Runs a step: turns the scheduler's plan into a flat batch, computes it, and returns tokens.

If something is wrong with one request (values that are not finite, a token outside the vocabulary), only that request
fails, and nothing of it stays in the pool.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
import torch

from slotdeck.engine.core.kv_memory import tokens_that_fit
from slotdeck.engine.core.request import Request
from slotdeck.engine.core.step import ModelRunnerOutput, ScheduledRequest, SchedulerOutput
from slotdeck.engine.model.attention_backend import Span, sort_key
from slotdeck.engine.model.errors import ModelError, human_bytes
from slotdeck.engine.model.hardware import available_memory, physical_cores
from slotdeck.engine.model.kv_store import KV_DTYPES, KVStore, give_memory_back
from slotdeck.engine.model.kv_swap import HostCopies
from slotdeck.engine.model.load import LoadedModel
from slotdeck.engine.model.sampling import NOT_FINITE, inverse_temperature, plainly_drawn, plainly_greedy, sample
from slotdeck.engine.model.step_decoder import Batch, Draw
from slotdeck.engine.settings import BLOCK_SIZE


@dataclass(slots=True)
class _Wanted:
    """Rows of a step after which a token is wanted, by how it is chosen."""

    greedy: list[ScheduledRequest] = field(default_factory=list)
    """The decoder takes the most likely token."""
    drawn: list[ScheduledRequest] = field(default_factory=list)
    """The decoder draws the token."""
    logits: list[ScheduledRequest] = field(default_factory=list)
    """``sample`` chooses the token from the logits."""


BOTH_POOLS_SHARE = 0.9
"""Part of the available memory that a second pool may take while the first is still in use."""


class Runner:
    """Owns the KV store and computes plans, one at a time, from one thread.

    ``kv_dtype`` "auto" means the type that suits the weights. ``threads`` None means one for each physical core; the
    number is set for the whole process. Raises ModelError if the pool does not fit into memory.
    """

    def __init__(self, model: LoadedModel, num_blocks: int, kv_dtype: str = "auto", threads: int | None = None) -> None:
        self.kv_dtype = kv_type(kv_dtype, model.kv_dtype)
        self.device = model.device
        self.threads = threads or physical_cores()
        self._config = model.config
        self._decoder = model.decoder
        self._decoder.set_threads(self.threads)
        self._refuse_unless_fits(num_blocks)
        with torch.inference_mode():
            self._store = model.decoder.allocate_kv(num_blocks, KV_DTYPES[self.kv_dtype])
        self._host_copies = HostCopies(self._store)
        self.swapped_out = 0
        """Bytes of KV that the latest run() copied to host memory."""
        self.swapped_in = 0
        """Bytes of KV that the latest run() copied back."""

    @property
    def num_blocks(self) -> int:
        """Blocks of the pool."""
        return self._store.num_blocks

    @property
    def kv_bytes(self) -> int:
        """Bytes of K and V in the pool: bytes per token x tokens, without the scales of int8."""
        return self._store.bytes_allocated

    @property
    def scale_bytes(self) -> int:
        """Bytes of the pool's scales; 0 unless the type is int8."""
        return self._store.scale_bytes

    @property
    def block_bytes(self) -> int:
        """Bytes of one block with its scales, which is what swapping it copies, one way."""
        return self._store.block_bytes

    @property
    def swapped_bytes(self) -> int:
        """Bytes of host memory that hold the KV of preempted requests."""
        return self._host_copies.bytes_held

    def part_seconds(self) -> dict[str, float]:
        """Seconds that each part of the decoder has taken so far; empty if not measured. Any thread may ask."""
        return self._decoder.part_seconds()

    def forget_swapped(self) -> None:
        """Drop all host copies. After a failed step, everything is computed again."""
        self._host_copies.forget()

    def allocate_pool(self, num_blocks: int) -> KVStore | None:
        """A pool of zeros of that size beside the one in use; ``None`` when memory cannot hold both (:meth:`resize`).

        May be called in any thread while steps run. Raises ModelError when memory cannot hold that size at all.
        """
        if num_blocks < 1:
            raise ModelError(f"a KV pool needs at least one block of {BLOCK_SIZE} tokens, not {num_blocks}")
        give_memory_back(self.device)  # what the allocator keeps for later must not look taken
        if num_blocks > self.num_blocks:
            self._refuse_unless_fits(num_blocks, self.num_blocks)
        if num_blocks * self.block_bytes > BOTH_POOLS_SHARE * available_memory(self.device):
            return None
        try:
            with torch.inference_mode():
                return self._decoder.allocate_kv(num_blocks, KV_DTYPES[self.kv_dtype])
        except (RuntimeError, MemoryError):
            return None

    def copy_blocks(self, pool: KVStore, sources: Mapping[int, int]) -> None:
        """Copy blocks of the pool in use into ``pool``: its block id to the id of the block that it takes over."""
        with torch.inference_mode():
            pool.copy_from(self._store, sources)

    def use_pool(self, pool: KVStore) -> KVStore:
        """Compute with ``pool`` from the next step on; gives the pool used so far. Host copies stay valid."""
        before, self._store = self._store, pool
        self._host_copies.use(pool)
        return before

    def free_pool(self, pool: KVStore) -> None:
        """Give the memory of a pool that is not in use back to the machine."""
        pool.free()

    def resize(self, num_blocks: int, on_progress: Callable[[], None] = lambda: None) -> None:
        """Grow or shrink the pool in place; blocks below both sizes keep what they hold, and memory set free is given
        back. ``on_progress`` is called after each tensor.

        At the peak it takes the larger of both sizes and one layer. Raises ModelError, and keeps the old size, when
        that does not fit into memory.
        """
        if num_blocks < 1:
            raise ModelError(f"a KV pool needs at least one block of {BLOCK_SIZE} tokens, not {num_blocks}")
        before = self.num_blocks
        if num_blocks > before:
            give_memory_back(self.device)  # what the allocator keeps for later must not look taken
            self._refuse_unless_fits(num_blocks, before)
        try:
            with torch.inference_mode():
                self._store.resize(num_blocks, on_progress)
        except (RuntimeError, MemoryError) as error:
            raise ModelError(
                f"memory ran out on the way to a KV pool of {num_blocks * BLOCK_SIZE} tokens; it keeps its"
                f" {before * BLOCK_SIZE} ({error})"
            ) from error

    def move(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks, (source, destination) each, to compact the pool before it shrinks.

        All sources are read before any destination is written, so the order of pairs is of no matter. Raises
        ValueError, and copies nothing, for a block outside the pool and for a destination named twice.
        """
        with torch.inference_mode():
            self._store.move(pairs)

    def _refuse_unless_fits(self, num_blocks: int, held: int = 0) -> None:
        """Raise ModelError unless ``num_blocks`` fit into memory, for a pool that already has ``held`` of them."""
        per_token = self._config.token_bytes(self.kv_dtype)
        per_block, free = per_token * BLOCK_SIZE, available_memory(self.device)
        layer = held * per_block // self._config.num_layers  # exists twice while it grows
        if (num_blocks - held) * per_block + layer <= free:
            return
        fits = held * BLOCK_SIZE + tokens_that_fit(free - layer, per_token)
        raise ModelError(
            f"the KV pool of {num_blocks * BLOCK_SIZE} tokens takes {human_bytes(num_blocks * per_block)}"
            f" ({human_bytes(per_token)} per token), but {human_bytes(free + held * per_block)} are free."
            f" At most {fits} tokens fit: lower --kv-tokens, --slots or --context."
        )

    def run(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
        """Swap out, drop copies, swap in, then compute all requests of a step and write their K and V.

        The result has a token for each sampling row that succeeded, and a reason for each row that failed. Raises
        ValueError if the step does not fit the pool or the host copies, and what torch raises if the step fails; then
        :meth:`forget_swapped` frees the host copies.
        """
        self.swapped_out = self.swapped_in = 0
        if scheduler_output.swap_outs or scheduler_output.swap_drops or scheduler_output.swap_ins:
            with torch.inference_mode():
                self._swap(scheduler_output)
        result = ModelRunnerOutput()
        rows = []
        for row in scheduler_output.rows:
            reason = self._refusal(row)
            if reason is None:
                rows.append(row)
            else:
                result.failures[row.request.id] = reason
        if rows:
            with torch.inference_mode():
                self._compute(rows, result)
        return result

    def _swap(self, scheduler_output: SchedulerOutput) -> None:
        for swap in scheduler_output.swap_outs:
            self.swapped_out += self._host_copies.swap_out(swap)
        for request_id in scheduler_output.swap_drops:
            self._host_copies.drop(request_id)
        for swap in scheduler_output.swap_ins:
            self.swapped_in += self._host_copies.swap_in(swap)

    def _refusal(self, row: ScheduledRequest) -> str | None:
        """Why a row cannot be computed, or None."""
        tokens = row.request.token_ids[row.start : row.start + row.count]
        if len(tokens) != row.count or row.count < 1:
            return f"the plan asks for tokens {row.start} to {row.start + row.count - 1}, which are not there"
        if min(tokens) < 0 or max(tokens) >= self._config.vocab_size:
            return f"a token id is outside the vocabulary of {self._config.vocab_size}"
        if row.start + row.count > self._config.max_positions:
            return f"position {row.start + row.count - 1} is beyond the {self._config.max_positions} of the model"
        return None

    def _compute(self, rows: Sequence[ScheduledRequest], result: ModelRunnerOutput) -> None:
        began = time.perf_counter()
        spans = [Span(row.start, row.count, row.request.block_ids) for row in rows]
        order = sorted(range(len(rows)), key=lambda index: sort_key(spans[index]))
        rows, spans = [rows[index] for index in order], [spans[index] for index in order]
        ends = list(accumulate(row.count for row in rows))
        wanted = self._wanted(rows)
        batch = self._batch(rows, spans, ends, wanted)
        laid_out = time.perf_counter()
        try:
            output = self._decoder.forward(batch, self._store)
            good = output.finite
        except BaseException:
            self._clear(batch.slot_mapping)  # partly written values must not stay
            raise
        computed = time.perf_counter()
        result.seconds = {"lay_out": laid_out - began, "forward": computed - laid_out}
        if not good.all():
            self._fail(rows, ends, good, batch, result)
        for row, token in zip((*wanted.greedy, *wanted.drawn), (*output.greedy, *output.drawn), strict=True):
            if row.request.id in result.failures:
                continue
            if token < 0:
                result.failures[row.request.id] = NOT_FINITE
            else:
                result.tokens[row.request.id] = token
        if not wanted.logits:
            return
        sampled = sample(output.logits, [row.request for row in wanted.logits])
        result.seconds["sampling"] = time.perf_counter() - computed
        found = zip(wanted.logits, sampled.tokens, sampled.finite, sampled.logprobs, strict=True)
        for row, token, fine, logprobs in found:
            if row.request.id in result.failures:
                continue
            if not fine:
                result.failures[row.request.id] = NOT_FINITE
                continue
            result.tokens[row.request.id] = token
            if logprobs is not None:
                result.logprobs[row.request.id] = logprobs

    def _wanted(self, rows: Sequence[ScheduledRequest]) -> _Wanted:
        wanted = _Wanted()
        for row in rows:
            if not row.samples:
                continue
            if self._decoder.samples and plainly_greedy(row.request):
                wanted.greedy.append(row)
            elif self._decoder.samples and plainly_drawn(row.request):
                wanted.drawn.append(row)
            else:
                wanted.logits.append(row)
        return wanted

    def _batch(
        self,
        rows: Sequence[ScheduledRequest],
        spans: Sequence[Span],
        ends: Sequence[int],
        wanted: _Wanted,
    ) -> Batch:
        """The flat batch of rows in order."""
        token_ids: list[int] = []
        positions: list[int] = []
        slot_mapping: list[int] = []
        for row, span in zip(rows, spans, strict=True):
            reach = range(span.start, span.start + span.count)
            token_ids += row.request.token_ids[reach.start : reach.stop]
            positions += reach
            slot_mapping += span.slots()
        last = {id(row): end - 1 for row, end in zip(rows, ends, strict=True)}
        return Batch(
            token_ids=token_ids,
            positions=positions,
            slot_mapping=slot_mapping,
            attention_metadata=self._decoder.build_attention_metadata(spans, slot_mapping, self._store),
            logit_rows=[last[id(row)] for row in wanted.logits],
            greedy_rows=[last[id(row)] for row in wanted.greedy],
            draws=[_draw(row.request, last[id(row)]) for row in wanted.drawn],
        )

    def _fail(
        self,
        rows: Sequence[ScheduledRequest],
        ends: Sequence[int],
        good: np.ndarray,
        batch: Batch,
        result: ModelRunnerOutput,
    ) -> None:
        """Fail each request that has a token that is not finite, and clear what it wrote in this step."""
        for row, end in zip(rows, ends, strict=True):
            part = slice(end - row.count, end)
            if not good[part].all():
                result.failures[row.request.id] = NOT_FINITE
                self._clear(batch.slot_mapping[part])

    def _clear(self, slot_mapping: Sequence[int]) -> None:
        self._store.clear(self._store.token_rows(torch.tensor(slot_mapping, device=self.device)))


def _draw(request: Request, row: int) -> Draw:
    p = request.sampling
    return Draw(row, p.seed, request.num_tokens, inverse_temperature(p), p.top_k, p.top_p, p.min_p)


def kv_type(name: str, default: str) -> str:
    """The type of the pool, a key of KV_DTYPES. "auto" means ``default``. Raises ModelError for an unknown name."""
    if name not in ("auto", *KV_DTYPES):
        *most, last = ("auto", *KV_DTYPES)
        raise ModelError(f"unknown type of the KV pool {name!r}: use {', '.join(most)} or {last}")
    return default if name == "auto" else name
