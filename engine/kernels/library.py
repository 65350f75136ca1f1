"""The border between Python and the native library: structures, checks, and one call per step.

Arrays are numpy arrays, C-contiguous; whoever builds a :class:`NativeModel` keeps its weights alive through it. Calls
release the GIL. A :class:`Kernels` is used from one thread at a time.
"""

from __future__ import annotations

import ctypes
import logging
import weakref
from collections.abc import Iterator, Sequence
from ctypes import POINTER, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_uint64, c_void_p
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from slotdeck.engine.kernels.build import BuildError, library_path

logger = logging.getLogger(__name__)

ABI = 5
GROUP = 64
"""Values along the depth that share a scale: of activations, and of weights of 8 bits."""
BLOCK = 32
"""Values along the depth that share step and minimum: of weights of 4 bits."""
TILE = 32
"""Columns of a product are padded to this."""
PANEL = 16
KV_TYPES = {"fp32": 0, "bf16": 1, "fp16": 2, "int8": 3}
"""Types of the KV pool that the attention kernel reads."""

WEIGHT_BITS = {"int8": 8, "int4": 4}
"""Bits of one weight in the products of the layers, by the type of the weights."""

PARTS = ("embedding", "norms", "qkv", "attention", "output", "gate_up", "down", "head", "draw")
"""Parts of a step, in the order of the library's counters. ``qkv`` has the rotary embedding and the writing of K and V,
``gate_up`` SiLU, ``head`` the last norm and the choice of greedy tokens, ``draw`` that of drawn ones."""


class _Product(ctypes.Structure):
    _fields_ = [("codes", c_void_p), ("scales", c_void_p), ("columns", c_int32), ("depth", c_int32),
                ("bits", c_int32)]  # fmt: skip


class _Layer(ctypes.Structure):
    _fields_ = [
        ("input_norm", c_void_p),
        ("mlp_norm", c_void_p),
        ("qkv", _Product),
        ("output", _Product),
        ("gate_up", _Product),
        ("down", _Product),
    ]


class _Model(ctypes.Structure):
    _fields_ = [
        *((name, c_int32) for name in ("hidden", "heads", "kv_heads", "head_dim", "intermediate", "vocab", "layers")),
        ("block_size", c_int32),
        ("eps", c_float),
        ("head_stride", c_int32),
        ("window", c_int32),
        ("embedding", c_void_p),
        ("norm", c_void_p),
        ("inverse_frequencies", c_void_p),
        ("head", _Product),
        ("layer", POINTER(_Layer)),
    ]


class _Draw(ctypes.Structure):
    _fields_ = [
        ("token", c_int64),
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
class Packed:
    """Weights [columns, depth], padded and in the order the kernels read; see Product in native/types.h.

    8 bits: ``codes`` uint8 [columns / 16, depth / 4, 16, 4], stored as value + 128; ``scales`` uint16 (bits of bf16)
    [columns / 16, depth / 64, 16]. 4 bits: ``codes`` uint8 [columns / 16, depth / 32, 320] with steps and minima among
    them; ``scales`` is empty. :mod:`slotdeck.engine.kernels.four_bits` makes those.
    """

    codes: np.ndarray
    scales: np.ndarray

    @property
    def bits(self) -> int:
        return 8 if self.codes.ndim == 4 else 4

    @property
    def columns(self) -> int:
        return int(self.codes.shape[0]) * PANEL

    @property
    def depth(self) -> int:
        return int(self.codes.shape[1]) * (4 if self.bits == 8 else BLOCK)

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.scales.nbytes

    @staticmethod
    def shapes(columns: int, depth: int, bits: int = 8) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shapes of codes and scales for ``columns`` (a multiple of 32) and ``depth`` (a multiple of 64)."""
        panels = columns // PANEL
        if bits == 4:
            return (panels, depth // BLOCK, BLOCK * PANEL // 2 + 4 * PANEL), (0,)
        return (panels, depth // 4, PANEL, 4), (panels, depth // GROUP, PANEL)

    def _structure(self) -> _Product:
        return _Product(_address(self.codes), _address(self.scales), self.columns, self.depth, self.bits)


@dataclass(frozen=True)
class PackedLayer:
    """One layer. Norms are fp32, padded with zeros to 64; see ``engine.model.packing`` for the order of columns."""

    input_norm: np.ndarray
    qkv: Packed
    output: Packed
    mlp_norm: np.ndarray
    gate_up: Packed
    down: Packed


@dataclass(frozen=True)
class PackedModel:
    """All a step needs: sizes and weights. ``embedding`` uint16 (bits of bf16) [vocab, hidden].

    ``window`` is the number of newest keys that a token sees, its own included; 0: all.
    """

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    eps: float
    block_size: int
    window: int
    embedding: np.ndarray
    layers: Sequence[PackedLayer]
    norm: np.ndarray
    head: Packed
    inverse_frequencies: np.ndarray
    _structures: list[object] = field(default_factory=list, repr=False)

    @property
    def head_stride(self) -> int:
        """Columns of one head: head_dim padded to 32."""
        return pad(self.head_dim, TILE)

    def _structure(self) -> _Model:
        if not self._structures:
            layers = (_Layer * len(self.layers))(
                *(
                    _Layer(
                        _address(layer.input_norm),
                        _address(layer.mlp_norm),
                        *(product._structure() for product in (layer.qkv, layer.output, layer.gate_up, layer.down)),
                    )
                    for layer in self.layers
                )
            )
            model = _Model(
                self.hidden, self.heads, self.kv_heads, self.head_dim, self.intermediate, self.vocab, len(self.layers),
                self.block_size, self.eps, self.head_stride, self.window, _address(self.embedding),
                _address(self.norm), _address(self.inverse_frequencies), self.head._structure(), layers,
            )  # fmt: skip
            self._structures.extend((model, layers))
        return self._structures[0]  # type: ignore[return-value]


@dataclass(frozen=True)
class Pool:
    """The KV pool as addresses: one K and one V array per layer, [kv_heads, num_blocks, block_size, head_dim].

    Their scales, fp32 [kv_heads, num_blocks, block_size] per layer, belong to int8 alone and are empty otherwise.
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
    def token(self) -> int:
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
    """The library with its threads, for one instruction set (default: the best this CPU has).

    Raises BuildError when the library cannot be had or does not compute rightly on this machine.
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
        """End the threads. Nothing may be computed afterwards."""
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
        if self._library.slotdeck_step(self._handle, ctypes.byref(model._structure()), ctypes.byref(step)):
            raise MemoryError("not enough memory for the buffers of this step")
        return StepOutput(greedy, finite, logits, list(drawn))

    def seconds(self) -> dict[str, float]:
        """What each of PARTS has taken in all steps so far, waiting for other threads included. Any thread may ask,
        also while a step runs, but not after ``close``."""
        counted = (c_int64 * len(PARTS))()
        self._library.slotdeck_times(self._handle, counted)
        return {part: nanoseconds / 1e9 for part, nanoseconds in zip(PARTS, counted, strict=True)}

    def product(self, values: np.ndarray, weights: Packed) -> np.ndarray:
        """``values`` fp32 [rows, depth] quantised to int8, times ``weights``: fp32 [rows, columns]."""
        out = np.empty((len(values), weights.columns), np.float32)
        structure = weights._structure()
        if self._library.slotdeck_product(
            self._handle, ctypes.byref(structure), _address(values), len(values), _address(out)
        ):
            raise MemoryError("not enough memory for the buffers of this product")
        return out

    def draw(self, logits: np.ndarray, draws: Sequence[DrawParameters]) -> list[int]:
        """A token for each row of ``logits`` fp32 [len(draws), vocab], as a step draws it; -1: not finite."""
        drawn = (c_int64 * len(draws))()
        if self._library.slotdeck_draw(
            self._handle, _address(logits), logits.shape[1], _draws(draws), len(draws), drawn
        ):
            raise MemoryError("not enough memory for the rows to draw from")
        return list(drawn)

    def pack(self, weight: np.ndarray, into: Packed, first: int) -> None:
        """Quantise ``weight`` fp32 [rows, depth] into the columns from ``first`` on of ``into``, of 8 bits.

        Values that are not finite give an infinite scale.
        """
        rows, depth = weight.shape
        if first + rows > into.columns or depth > into.depth or weight.dtype != np.float32:
            raise ValueError(f"weights {weight.shape} {weight.dtype} do not fit at column {first} of {into.columns}")
        self._library.slotdeck_pack(
            _address(weight), rows, depth, first, into.depth, _address(into.codes), _address(into.scales)
        )


def pad(size: int, to: int) -> int:
    """``size`` rounded up to a multiple of ``to``."""
    return -(-size // to) * to


def empty(columns: int, depth: int, bits: int = 8) -> Packed:
    """A packed product of zeros, padded to 32 columns and a depth of 64."""
    codes, scales = Packed.shapes(pad(columns, TILE), pad(depth, GROUP), bits)
    return Packed(np.full(codes, 128 if bits == 8 else 0, np.uint8), np.zeros(scales, np.uint16))


def _draws(draws: Sequence[DrawParameters]) -> ctypes.Array[_Draw]:
    return (_Draw * len(draws))(
        *(_Draw(d.token, d.seed, d.position, d.top_k, d.top_p, d.inverse_temperature, d.min_p) for d in draws)
    )


def _addresses(numbers: np.ndarray, parts: Sequence[Sequence[int]]) -> Iterator[int]:
    """Address of each of the parts that were joined into ``numbers``, in order."""
    address = numbers.ctypes.data
    for part in parts:
        yield address
        address += len(part) * numbers.itemsize


def _address(array: np.ndarray) -> int:
    if not array.flags.c_contiguous:
        raise ValueError("the kernels read contiguous arrays only")
    return array.ctypes.data


def instruction_sets(library: ctypes.CDLL | None = None) -> list[str]:
    """What this CPU has of the instruction sets in the library, best first. Raises BuildError."""
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
        raise BuildError(f"the native kernels in {path} are of another version; delete that file and restart")
    return library
