"""The decoder of the Llama family on the native kernels: int8 or int4 weights, and one call for a whole step.

Weights, and the activations that meet them in int8, are rounded by groups; residuals, norms, rotary embedding and
attention are computed in 32 bit, and K and V are read back as stored. A token's result does not depend on what shares
its batch, nor on how its prompt was cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

from slotdeck.engine.kernels.build import BuildError
from slotdeck.engine.kernels.library import Kernels, PackedModel, Pool, StepInput
from slotdeck.engine.model.attention import Span
from slotdeck.engine.model.config import ModelConfig
from slotdeck.engine.model.decoder import Batch, Output
from slotdeck.engine.model.errors import UsageError
from slotdeck.engine.model.hardware import DTYPES, choose_dtype, physical_cores
from slotdeck.engine.model.kv_store import KVStore
from slotdeck.engine.model.packing import BITS
from slotdeck.engine.settings import BLOCK_SIZE

NATIVE_KV_DTYPE = "bf16"
"""Type of the KV pool beside int8 weights unless another is asked for."""

_KV_NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16", torch.int8: "int8"}


@dataclass(frozen=True, slots=True)
class NativeLayout:
    """Spans of one step as the kernels read them: S spans, their first positions, lengths, and block tables."""

    starts: list[int]
    counts: list[int]
    tables: list[int]
    """[S]: where the span's block table begins in ``blocks``."""
    blocks: list[int]
    """All tables one after another."""


class NativeDecoder:
    """Computes a flat batch. Not thread-safe: one step at a time."""

    chooses = True
    """The best token of ``Batch.best_rows`` without writing their logits down, and those of ``Batch.draws``."""

    def __init__(self, config: ModelConfig, model: PackedModel, kernels: Kernels) -> None:
        self.config = config
        self.kernels = kernels
        self.kv_dtype = DTYPES[NATIVE_KV_DTYPE]
        self._model = model
        self._last_pool: tuple[object, Pool] | None = None

    @property
    def path(self) -> str:
        """What computes, in a word or two."""
        return f"native {self.kernels.instruction_set}"

    def set_threads(self, threads: int) -> None:
        """Compute with so many threads; torch, which only samples beside it, gets one."""
        torch.set_num_threads(1)
        if threads != self.kernels.threads:
            before, self.kernels = self.kernels, Kernels(threads, self.kernels.instruction_set)
            before.close()

    def lay_out(self, spans: Sequence[Span], store: KVStore) -> NativeLayout:
        """Lay out one step. Raises ValueError when a table is too short or names a block outside the pool."""
        lengths = [-(-(span.start + span.count) // BLOCK_SIZE) for span in spans]
        blocks: list[int] = []
        for span, length in zip(spans, lengths, strict=True):
            if len(span.blocks) < length:
                raise ValueError(f"a sequence of {span.start + span.count} tokens has only {len(span.blocks)} blocks")
            blocks += span.blocks[:length]
        if min(blocks) < 0 or max(blocks) >= store.num_blocks:
            raise ValueError(f"block ids must be 0 to {store.num_blocks - 1}")
        return NativeLayout(
            starts=[span.start for span in spans],
            counts=[span.count for span in spans],
            tables=[0, *accumulate(lengths[:-1])],
            blocks=blocks,
        )

    def forward(self, batch: Batch, store: KVStore) -> Output:
        """Run one step and write its K and V into ``store``; see ``Decoder.forward`` in ``engine.model.decoder``."""
        layout = batch.layout
        assert isinstance(layout, NativeLayout)
        computed = self.kernels.step(
            self._model,
            self._pool(store),
            StepInput(
                token_ids=batch.token_ids,
                positions=batch.positions,
                slots=batch.slots,
                span_start=layout.starts,
                span_count=layout.counts,
                span_blocks=layout.tables,
                blocks=layout.blocks,
                greedy_tokens=batch.best_rows,
                logit_tokens=batch.logit_rows,
                draws=batch.draws,
            ),
        )
        return Output(torch.from_numpy(computed.logits), computed.finite, computed.best.tolist(), computed.drawn)

    def part_seconds(self) -> dict[str, float]:
        """See :meth:`slotdeck.engine.kernels.library.Kernels.seconds`."""
        return self.kernels.seconds()

    def _pool(self, store: KVStore) -> Pool:
        """The addresses of the pool, read anew when it was made anew: reading them costs a tenth of a millisecond."""
        if self._last_pool is None or self._last_pool[0] is not store.made:
            self._last_pool = (store.made, _addresses(store))
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


PORTABLE = "portable"
FASTER_IN_FOUR_BITS = {"avx2"}
"""Instruction sets for which int4 was measured to be faster than int8 for one user and for many."""


def choose_weights(name: str, device: torch.device, in_four_bits: bool = False) -> tuple[str, str, Kernels | None]:
    """Type of the weights ("int8", "int4", "fp32" or "bf16"), a sentence that says why, and the kernels for the first
    two.

    ``name`` may be "auto": the fastest of those that answer as well as fp32; ``in_four_bits`` says that int4 does,
    since the model comes on its grid. Where the kernels cannot be had, torch computes in its own best type, and the
    sentence says so. Raises UsageError for another name, and for int8 and int4 on a GPU.
    """
    if name in BITS and device.type != "cpu":
        raise UsageError(f"{name} weights are computed on the CPU only; on {device} use --weights bf16 or fp32.")
    if name not in ("auto", *BITS) or device.type != "cpu":
        return (*choose_dtype(name, device), None)
    torch_type, torch_reason = choose_dtype("auto", device)
    try:
        kernels = Kernels(physical_cores())
    except BuildError as error:
        reason = error if name == "auto" else f"{name} was asked for, but {error}"
        return torch_type, f"Weights are {torch_type}, computed by torch: {reason}.", None
    chosen = kernels.instruction_set
    if name in BITS:
        return name, f"Weights are {name}, as asked, computed by native kernels for {chosen}.", kernels
    # Not timed at start: a busy moment would change the answers from one start to the next.
    if chosen in FASTER_IN_FOUR_BITS and in_four_bits:
        return "int4", f"Weights are int4, exactly as in the model's file, on native kernels for {chosen}.", kernels
    if chosen != PORTABLE and not cpu_has_amx():
        return "int8", f"Weights are int8: native kernels for {chosen} are the fastest here.", kernels
    kernels.close()
    return torch_type, torch_reason, None


def cpu_has_amx() -> bool:
    """Whether the CPU has matrix units, which torch uses in bf16 and the kernels don't have."""
    check = getattr(torch.cpu, "_is_amx_tile_supported", None)
    return check is not None and bool(check())
