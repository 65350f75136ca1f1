"""The Llama decoder on the native kernels: int8 or int4 weights, and one call for a whole step.

Weights are rounded by groups, and so are the activations that are multiplied with them (to int8). Residuals, norms,
rotary embedding and attention are computed in fp32, and K and V are read back as they are stored. The result for a
token does not depend on what shares its batch, nor on how its prompt was cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

from slotdeck.engine.kernels.library import Kernels, Pool, StepInput
from slotdeck.engine.kernels.packed import PackedModel
from slotdeck.engine.model.attention_backend import Span
from slotdeck.engine.model.config import ModelConfig
from slotdeck.engine.model.hardware import DTYPES
from slotdeck.engine.model.kv_store import KVStore
from slotdeck.engine.model.step_decoder import Batch, DecoderOutput

NATIVE_KV_DTYPE = "bf16"
"""Default type of the KV pool beside int8 and int4 weights."""

_KV_NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16", torch.int8: "int8"}


@dataclass(frozen=True, slots=True)
class NativeAttentionMetadata:
    """The S spans of one step as the kernels read them."""

    starts: list[int]
    """[S]: position of the first token."""
    counts: list[int]
    """[S]"""
    table_offsets: list[int]
    """[S]: where the span's block table begins in ``blocks``."""
    blocks: list[int]
    """All block tables, one after another."""


class NativeDecoder:
    """Computes flat batches in C++; see :class:`slotdeck.engine.model.step_decoder.StepDecoder`."""

    samples = True

    def __init__(self, config: ModelConfig, model: PackedModel, kernels: Kernels) -> None:
        self.config = config
        self.kernels = kernels
        self.kv_dtype = DTYPES[NATIVE_KV_DTYPE]
        self._model = model
        self._last_pool: tuple[object, Pool] | None = None

    @property
    def backend_name(self) -> str:
        return f"native {self.kernels.instruction_set}"

    def set_threads(self, threads: int) -> None:
        """Compute with this many threads. torch, which only samples beside the kernels, gets one."""
        torch.set_num_threads(1)
        if threads != self.kernels.threads:
            before, self.kernels = self.kernels, Kernels(threads, self.kernels.instruction_set)
            before.close()

    def allocate_kv(self, num_blocks: int, dtype: torch.dtype) -> KVStore:
        """The kernels read and write the memory layout of KVStore directly."""
        return KVStore(self.config, num_blocks, dtype, torch.device("cpu"))

    def build_attention_metadata(
        self, spans: Sequence[Span], slot_mapping: Sequence[int], store: KVStore
    ) -> NativeAttentionMetadata:
        """Raises ValueError if a block table is too short or names a block outside the pool."""
        lengths = [span.num_blocks for span in spans]
        blocks: list[int] = []
        for span, length in zip(spans, lengths, strict=True):
            if len(span.blocks) < length:
                raise ValueError(f"a sequence of {span.start + span.count} tokens has only {len(span.blocks)} blocks")
            blocks += span.blocks[:length]
        if min(blocks) < 0 or max(blocks) >= store.num_blocks:
            raise ValueError(f"block ids must be 0 to {store.num_blocks - 1}")
        return NativeAttentionMetadata(
            starts=[span.start for span in spans],
            counts=[span.count for span in spans],
            table_offsets=[0, *accumulate(lengths[:-1])],
            blocks=blocks,
        )

    def forward(self, batch: Batch, store: KVStore) -> DecoderOutput:
        metadata = batch.attention_metadata
        assert isinstance(metadata, NativeAttentionMetadata)
        computed = self.kernels.step(
            self._model,
            self._pool(store),
            StepInput(
                token_ids=batch.token_ids,
                positions=batch.positions,
                slot_mapping=batch.slot_mapping,
                span_starts=metadata.starts,
                span_counts=metadata.counts,
                table_offsets=metadata.table_offsets,
                blocks=metadata.blocks,
                greedy_rows=batch.greedy_rows,
                logit_rows=batch.logit_rows,
                draws=batch.draws,
            ),
        )
        return DecoderOutput(
            torch.from_numpy(computed.logits), computed.finite, computed.greedy.tolist(), computed.drawn
        )

    def part_seconds(self) -> dict[str, float]:
        return self.kernels.seconds()

    def _pool(self, store: KVStore) -> Pool:
        """The addresses of the pool. They are read again only after it was reallocated: that takes 0.1 ms."""
        if self._last_pool is None or self._last_pool[0] is not store.generation:
            self._last_pool = (store.generation, _addresses(store))
        return self._last_pool[1]


def _addresses(store: KVStore) -> Pool:
    def addresses(tensors: Sequence[torch.Tensor]) -> list[int]:
        return [tensor.data_ptr() for tensor in tensors]

    return Pool(
        kv_type=_KV_NAMES[store.dtype],
        num_blocks=store.num_blocks,
        keys=addresses(store.keys),
        values=addresses(store.values),
        key_scales=addresses(store.key_scales),
        value_scales=addresses(store.value_scales),
    )
