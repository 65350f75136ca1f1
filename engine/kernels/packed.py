"""Weights of a model in the order in which the kernels read them, as numpy arrays and as the structures of C++."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, c_float, c_int32, c_void_p
from dataclasses import dataclass, field

import numpy as np

GROUP = 64
"""Values along the depth that share a scale: activations, and 8-bit weights."""
BLOCK = 32
"""Values along the depth that share a step and a minimum: 4-bit weights."""
TILE = 32
"""Columns of a product are padded to a multiple of this."""
PANEL = 16
"""Columns that are stored together."""
WEIGHT_BITS = {"int8": 8, "int4": 4}
"""Bits of one weight in the products of the layers, by the type of the weights."""


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


@dataclass(frozen=True)
class Packed:
    """Weights [columns, depth], padded and in the order in which the kernels read them; see Product in native/types.h.

    8 bits: ``codes`` uint8 [columns / 16, depth / 4, 16, 4], stored as value + 128; ``scales`` uint16 (bits of bf16)
    [columns / 16, depth / 64, 16].

    4 bits: ``codes`` uint8 [columns / 16, depth / 32, 320], which include steps and minima; ``scales`` is empty.
    :mod:`slotdeck.engine.kernels.four_bits` makes these.
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

    def structure(self) -> ctypes.Structure:
        """The product as C++ reads it; valid as long as the arrays are."""
        return _Product(address(self.codes), address(self.scales), self.columns, self.depth, self.bits)


@dataclass(frozen=True)
class PackedLayer:
    """One layer. Norms are fp32, padded with zeros to 64; see Layer in native/types.h for the order of columns."""

    input_norm: np.ndarray
    qkv: Packed
    output: Packed
    mlp_norm: np.ndarray
    gate_up: Packed
    down: Packed


@dataclass(frozen=True)
class PackedModel:
    """The sizes and weights of a model.

    ``embedding`` is uint16 (bits of bf16) [vocab, hidden]. ``window`` is the number of newest keys that a token sees,
    its own included; 0: all.
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

    def structure(self) -> ctypes.Structure:
        """The model as C++ reads it; valid as long as the model is."""
        if not self._structures:
            layers = (_Layer * len(self.layers))(
                *(
                    _Layer(
                        address(layer.input_norm),
                        address(layer.mlp_norm),
                        *(product.structure() for product in (layer.qkv, layer.output, layer.gate_up, layer.down)),
                    )
                    for layer in self.layers
                )
            )
            model = _Model(
                self.hidden, self.heads, self.kv_heads, self.head_dim, self.intermediate, self.vocab, len(self.layers),
                self.block_size, self.eps, self.head_stride, self.window, address(self.embedding),
                address(self.norm), address(self.inverse_frequencies), self.head.structure(), layers,
            )  # fmt: skip
            self._structures.extend((model, layers))
        return self._structures[0]  # type: ignore[return-value]


def pad(size: int, to: int) -> int:
    """``size`` rounded up to a multiple of ``to``."""
    return -(-size // to) * to


def empty(columns: int, depth: int, bits: int = 8) -> Packed:
    """A packed product of zeros; columns are padded to a multiple of 32, the depth to one of 64."""
    codes, scales = Packed.shapes(pad(columns, TILE), pad(depth, GROUP), bits)
    return Packed(np.full(codes, 128 if bits == 8 else 0, np.uint8), np.zeros(scales, np.uint16))


def address(array: np.ndarray) -> int:
    """Where the array is in memory. Raises ValueError unless it is C-contiguous."""
    if not array.flags.c_contiguous:
        raise ValueError("the kernels read contiguous arrays only")
    return array.ctypes.data
