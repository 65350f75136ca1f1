"""The interface between Python and the native library: structures, checks, and one call per step.

Arrays are C-contiguous numpy arrays. A :class:`PackedModel` keeps its weights alive. Calls release the GIL. Use one
:class:`Kernels` from one thread at a time.
"""

from __future__ import annotations

import ctypes
import logging
import weakref
from collections.abc import Iterator, Sequence
from ctypes import c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_uint64, c_void_p
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from slotdeck.engine.kernels.build import BuildError, library_path
from slotdeck.engine.kernels.packed import Packed, PackedModel, address

logger = logging.getLogger(__name__)

ABI = 6
KV_TYPES = {"fp32": 0, "bf16": 1, "fp16": 2, "int8": 3}
"""Types of the KV pool that the attention kernel reads."""

PARTS = ("embedding", "norms", "qkv", "attention", "output", "gate_up", "down", "head", "draw")
"""Parts of a step, in the order of the library's counters. ``qkv`` includes the rotary embedding and writing K and V,
``gate_up`` includes SiLU, ``head`` the last norm and the choice of greedy tokens; ``draw`` draws the other tokens."""


class _Draw(ctypes.Structure):
    _fields_ = [
        ("row", c_int64),
        ("seed", c_uint64),
        ("position", c_uint64),
        ("top_k", c_int64),
        ("top_p", c_double),
        ("inverse_temperature", c_float),
        ("min_p", c_float),
    ]


class _Step(ctypes.Structure):
    _fields_ = [
        *((name, c_int32) for name in ("num_tokens", "num_spans", "num_greedy", "num_logit_rows", "num_draws")),
        *((name, c_void_p) for name in ("token_ids", "positions", "slot_mapping", "span_starts", "span_counts")),
        ("table_offsets", c_void_p),
        ("blocks", c_void_p),
        ("kv_type", c_int32),
        ("num_blocks", c_int32),
        *((name, c_void_p) for name in ("keys", "values", "key_scales", "value_scales")),
        *((name, c_void_p) for name in ("greedy_rows", "greedy", "logit_rows", "logits", "finite", "draws", "drawn")),
    ]


@dataclass(frozen=True)
class Pool:
    """The addresses of the KV pool: one K and one V array per layer, [kv_heads, num_blocks, block_size, head_dim].

    The scales are fp32 [kv_heads, num_blocks, block_size] per layer if ``kv_type`` is int8, and empty otherwise.
    """

    kv_type: str
    num_blocks: int
    keys: Sequence[int]
    values: Sequence[int]
    key_scales: Sequence[int] = ()
    value_scales: Sequence[int] = ()
    _arrays: list[Any] = field(default_factory=list, repr=False)
    _addresses: list[int] = field(default_factory=list, repr=False)

    def _by_layer(self) -> list[int]:
        if not self._arrays:
            parts = (self.keys, self.values, self.key_scales, self.value_scales)
            self._arrays.extend((c_void_p * len(part))(*part) for part in parts)
            self._addresses.extend(ctypes.addressof(array) for array in self._arrays)
        return self._addresses


class DrawParameters(Protocol):
    """How to draw one token. The draw depends on ``seed``, of which 64 bits count, and on ``position`` alone."""

    @property
    def row(self) -> int:
        """Row of the batch after which a token is wanted."""
        ...

    @property
    def seed(self) -> int: ...

    @property
    def position(self) -> int: ...

    @property
    def inverse_temperature(self) -> float: ...

    @property
    def top_k(self) -> int:
        """Draw among this many most likely tokens; 0: all."""
        ...

    @property
    def top_p(self) -> float:
        """Draw among the most likely tokens that together reach this share of the probability; 1: all."""
        ...

    @property
    def min_p(self) -> float:
        """Draw among tokens that are at least this likely, as a share of the most likely one's probability; 0: all."""
        ...


@dataclass(slots=True)
class StepInput:
    """A flat batch of T tokens in S spans, and the rows whose next token is wanted.

    A span is consecutive tokens of one sequence. A row is a token's index in the batch.
    """

    token_ids: Sequence[int]
    """[T]"""
    positions: Sequence[int]
    """[T]"""
    slot_mapping: Sequence[int]
    """[T]: where K and V of each token go in the pool, block x 16 + offset."""
    span_starts: Sequence[int]
    """[S]: position of the span's first token."""
    span_counts: Sequence[int]
    """[S]"""
    table_offsets: Sequence[int]
    """[S]: where the span's block table begins in ``blocks``."""
    blocks: Sequence[int]
    """All block tables, one after another."""
    greedy_rows: Sequence[int]
    """Rows whose most likely next token is wanted."""
    logit_rows: Sequence[int]
    """Rows whose logits are wanted."""
    draws: Sequence[DrawParameters] = ()
    """Tokens to draw."""


@dataclass(slots=True)
class StepOutput:
    """The result of one step."""

    greedy: np.ndarray
    """int64 [len(greedy_rows)]: the first token with the largest logit; -1 where a logit is not finite."""
    finite: np.ndarray
    """bool [T]: whether everything computed for a token is finite."""
    logits: np.ndarray
    """fp32 [len(logit_rows), vocab]"""
    drawn: list[int]
    """One token for each of ``draws``; -1 where a logit is not finite."""


class Kernels:
    """The library and its threads, for one instruction set (default: the fastest that this CPU has).

    Raises BuildError if the library cannot be built or loaded, or if the CPU lacks the instruction set.
    """

    def __init__(self, threads: int = 1, instruction_set: str | None = None, path: Path | None = None) -> None:
        self._library = _load(path or library_path())
        available = instruction_sets(self._library)
        self.instruction_set = instruction_set or available[0]
        handle = self._library.slotdeck_create(self.instruction_set.encode(), threads)
        if not handle:
            raise BuildError(f"this CPU has no {self.instruction_set}; it has {', '.join(available)}")
        self._handle = handle
        self._finalizer = weakref.finalize(self, self._library.slotdeck_destroy, handle)
        self.threads = int(self._library.slotdeck_threads(handle))

    def close(self) -> None:
        """Stop the threads. Nothing may be computed afterwards."""
        self._finalizer()

    def step(self, model: PackedModel, pool: Pool, batch: StepInput) -> StepOutput:
        """Compute a flat batch and write its K and V into the pool. Raises MemoryError."""
        # All numbers of one type go into one array. To create an array and ask for its address takes microseconds, and
        # some twenty of them when the weights have just evicted Python from the caches.
        wide = (
            batch.token_ids,
            batch.positions,
            batch.slot_mapping,
            batch.table_offsets,
            batch.greedy_rows,
            batch.logit_rows,
        )
        narrow = (batch.span_starts, batch.span_counts, batch.blocks)
        wide_numbers = np.array([*chain.from_iterable(wide)], np.int64)
        narrow_numbers = np.array([*chain.from_iterable(narrow)], np.int32)
        token_ids, positions, slot_mapping, table_offsets, greedy_rows, logit_rows = _addresses(wide_numbers, wide)
        span_starts, span_counts, blocks = _addresses(narrow_numbers, narrow)
        greedy = np.empty(len(batch.greedy_rows), np.int64)
        finite = np.empty(len(batch.token_ids), np.bool_)
        logits = np.empty((len(batch.logit_rows), model.vocab), np.float32)
        draws = _draws(batch.draws)
        drawn = (c_int64 * len(batch.draws))()
        step = _Step(
            len(finite), len(batch.span_starts), len(greedy), len(logits), len(draws),
            token_ids, positions, slot_mapping, span_starts, span_counts, table_offsets, blocks,
            KV_TYPES[pool.kv_type], pool.num_blocks, *pool._by_layer(),
            greedy_rows, greedy.ctypes.data, logit_rows, logits.ctypes.data, finite.ctypes.data,
            ctypes.addressof(draws), ctypes.addressof(drawn),
        )  # fmt: skip
        if self._library.slotdeck_step(self._handle, ctypes.byref(model.structure()), ctypes.byref(step)):
            raise MemoryError("not enough memory for the buffers of this step")
        return StepOutput(greedy, finite, logits, list(drawn))

    def seconds(self) -> dict[str, float]:
        """Seconds that each of PARTS has taken in all steps so far, waiting for other threads included.

        Any thread may ask, even while a step runs, but not after ``close``.
        """
        counted = (c_int64 * len(PARTS))()
        self._library.slotdeck_times(self._handle, counted)
        return {part: nanoseconds / 1e9 for part, nanoseconds in zip(PARTS, counted, strict=True)}

    def product(self, values: np.ndarray, weights: Packed) -> np.ndarray:
        """Quantise ``values`` fp32 [rows, depth] to int8 and multiply by ``weights``: fp32 [rows, columns]."""
        out = np.empty((len(values), weights.columns), np.float32)
        structure = weights.structure()
        if self._library.slotdeck_product(
            self._handle, ctypes.byref(structure), address(values), len(values), address(out)
        ):
            raise MemoryError("not enough memory for the buffers of this product")
        return out

    def draw(self, logits: np.ndarray, draws: Sequence[DrawParameters]) -> list[int]:
        """Draw a token for each row of ``logits`` fp32 [len(draws), vocab], as a step does; -1 if not finite."""
        drawn = (c_int64 * len(draws))()
        if self._library.slotdeck_draw(
            self._handle, address(logits), logits.shape[1], _draws(draws), len(draws), drawn
        ):
            raise MemoryError("not enough memory for the rows to draw from")
        return list(drawn)

    def pack(self, weight: np.ndarray, into: Packed, first: int) -> None:
        """Quantise ``weight`` fp32 [rows, depth] into the 8-bit product ``into``, from column ``first`` on.

        Weights that are not finite give an infinite scale. Raises ValueError if the weights do not fit.
        """
        rows, depth = weight.shape
        if first + rows > into.columns or depth > into.depth or weight.dtype != np.float32:
            raise ValueError(f"weights {weight.shape} {weight.dtype} do not fit at column {first} of {into.columns}")
        self._library.slotdeck_pack(
            address(weight), rows, depth, first, into.depth, address(into.codes), address(into.scales)
        )


def _draws(draws: Sequence[DrawParameters]) -> ctypes.Array[_Draw]:
    return (_Draw * len(draws))(
        *(_Draw(d.row, d.seed, d.position, d.top_k, d.top_p, d.inverse_temperature, d.min_p) for d in draws)
    )


def _addresses(numbers: np.ndarray, parts: Sequence[Sequence[int]]) -> Iterator[int]:
    """Address of each of the parts that were joined into ``numbers``, in order."""
    place = numbers.ctypes.data
    for part in parts:
        yield place
        place += len(part) * numbers.itemsize


def instruction_sets(library: ctypes.CDLL | None = None) -> list[str]:
    """The library's instruction sets that this CPU has, fastest first. Raises BuildError."""
    library = library or _load(library_path())
    names: list[str] = []
    while (name := library.slotdeck_instruction_set(len(names))) is not None:
        names.append(name.decode())
    return names


def _load(path: Path) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(path))
        library.slotdeck_instruction_set.argtypes, library.slotdeck_instruction_set.restype = [c_int], c_char_p
        library.slotdeck_create.argtypes, library.slotdeck_create.restype = [c_char_p, c_int], c_void_p
        library.slotdeck_destroy.argtypes, library.slotdeck_destroy.restype = [c_void_p], None
        library.slotdeck_threads.argtypes = [c_void_p]
        library.slotdeck_times.argtypes, library.slotdeck_times.restype = [c_void_p, c_void_p], None
        library.slotdeck_step.argtypes = [c_void_p, c_void_p, c_void_p]
        library.slotdeck_product.argtypes = [c_void_p, c_void_p, c_void_p, c_int64, c_void_p]
        library.slotdeck_draw.argtypes = [c_void_p, c_void_p, c_int64, c_void_p, c_int64, c_void_p]
        library.slotdeck_pack.argtypes = [c_void_p, c_int64, c_int64, c_int64, c_int64, c_void_p, c_void_p]
        library.slotdeck_pack.restype = None
        found = library.slotdeck_abi()
    except (OSError, AttributeError) as error:
        raise BuildError(f"the native kernels in {path} do not load ({error}); delete that file and restart") from error
    if found != ABI:
        raise BuildError(f"the native kernels in {path} have another version; delete that file and restart")
    return library
