"""The tensors of the KV pool: how K and V are stored, read back, resized and moved.

Each layer has one K and one V tensor, [kv_heads, num_blocks, 16, head_dim]. The head comes first, so that the blocks of
a sequence, gathered head by head, already are the matrices that attention multiplies. The native kernels read the
same layout.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping, Sequence

import torch

from slotdeck.engine.model.config import ModelConfig
from slotdeck.engine.model.hardware import DTYPES
from slotdeck.engine.settings import BLOCK_SIZE

KV_DTYPES = DTYPES | {"fp16": torch.float16, "int8": torch.int8}
"""Types of the KV pool, by their names in the settings."""

SCALE_DTYPE = torch.float32
FREE_PAUSE = 0.01
"""Seconds between two tensors that are freed: freeing one holds the interpreter's lock for milliseconds."""


class KVStore:
    """Preallocated K and V of ``num_blocks`` blocks, in one of the types in KV_DTYPES.

    Invariant between steps: every value is finite. Attention reads the unused positions of a sequence's last block with
    weight 0, and 0 x NaN would be NaN. So the store starts with zeros. A value that the type cannot hold is stored as
    NaN, and the step that wrote a value that is not finite clears it (:meth:`clear`).
    """

    _scratch: torch.Tensor
    _computed: torch.Tensor

    def __init__(self, config: ModelConfig, num_blocks: int, dtype: torch.dtype, device: torch.device) -> None:
        self.num_blocks = num_blocks
        self.num_kv_heads = config.num_kv_heads
        self.head_dim = config.head_dim
        self.dtype = dtype
        self.device = device
        self.quantised = dtype == torch.int8
        # torch cannot multiply int8 by fp32, and on a CPU products in fp16 take ten times as long as in fp32.
        slow = self.quantised or (dtype == torch.float16 and device.type == "cpu")
        self.compute_dtype = torch.float32 if slow else dtype
        shape = (config.num_kv_heads, num_blocks, BLOCK_SIZE, config.head_dim)

        def tensors(shape: tuple[int, ...], dtype: torch.dtype, count: int) -> list[torch.Tensor]:
            return [torch.zeros(shape, dtype=dtype, device=device) for _ in range(count)]

        self.keys = tensors(shape, dtype, config.num_layers)
        self.values = tensors(shape, dtype, config.num_layers)
        scales = config.num_layers if self.quantised else 0
        self.key_scales = tensors(shape[:3], SCALE_DTYPE, scales)
        """fp32 [kv_heads, num_blocks, 16] per layer when quantised: stored value x scale = K."""
        self.value_scales = tensors(shape[:3], SCALE_DTYPE, scales)
        self._make_views()

    @property
    def bytes_allocated(self) -> int:
        """Bytes of K and V of all layers, scales not included."""
        return sum(tensor.nbytes for tensor in (*self.keys, *self.values))

    @property
    def scale_bytes(self) -> int:
        """Bytes of the scales of all layers."""
        return sum(tensor.nbytes for tensor in (*self.key_scales, *self.value_scales))

    @property
    def block_bytes(self) -> int:
        """Bytes of one block: K, V and scales of all layers."""
        return (self.bytes_allocated + self.scale_bytes) // self.num_blocks

    def token_rows(self, slots: torch.Tensor) -> torch.Tensor:
        """Rows for :meth:`write`: int64 [T x kv_heads], token by token. ``slots`` [T] are block x 16 + offset."""
        heads = torch.arange(self.num_kv_heads, device=slots.device) * (self.num_blocks * BLOCK_SIZE)
        return (slots[:, None] + heads).flatten()

    def block_rows(self, blocks: torch.Tensor) -> torch.Tensor:
        """Rows for gathering ``blocks`` [B, n]: int64 [kv_heads x B x n], head by head."""
        heads = torch.arange(self.num_kv_heads, device=blocks.device) * self.num_blocks
        return (heads[:, None] + blocks.flatten()).flatten()

    def write(self, layer: int, rows: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Store K and V [T, kv_heads, head_dim] of any float type, rounded to the type of the store."""
        width = self.head_dim
        if self.quantised:
            for data, scales, part in (
                (self._key_rows, self._key_scale_rows, keys),
                (self._value_rows, self._value_scale_rows, values),
            ):
                stored, scale = quantise(part.reshape(-1, width))
                data[layer].index_copy_(0, rows, stored)
                scales[layer].index_copy_(0, rows, scale)
            return
        keys, values = keys.to(self.dtype), values.to(self.dtype)
        if self.dtype == torch.float16:
            # A value that fp16 cannot hold has become infinite. As NaN it fails its request instead of distorting the
            # attention.
            keys, values = keys + (keys - keys), values + (values - values)
        self._key_rows[layer].index_copy_(0, rows, keys.reshape(-1, width))
        self._value_rows[layer].index_copy_(0, rows, values.reshape(-1, width))

    def gather_keys(self, layer: int, block_rows: torch.Tensor) -> torch.Tensor:
        """K of the blocks as stored, converted to ``compute_dtype``: [len(block_rows), 16 x head_dim].

        The result is valid until the next gather, which uses the same memory.
        """
        return self._gather(self._key_blocks, self._key_scale_blocks, layer, block_rows)

    def gather_values(self, layer: int, block_rows: torch.Tensor) -> torch.Tensor:
        """V of the blocks as stored; see :meth:`gather_keys`."""
        return self._gather(self._value_blocks, self._value_scale_blocks, layer, block_rows)

    def _gather(
        self, data: list[torch.Tensor], scales: list[torch.Tensor], layer: int, rows: torch.Tensor
    ) -> torch.Tensor:
        source, count = data[layer], rows.shape[0]
        if self._scratch.shape[0] < count:
            self._scratch = torch.empty(count, source.shape[1], dtype=self.dtype, device=self.device)
        stored = torch.index_select(source, 0, rows, out=self._scratch[:count])
        if self.compute_dtype == self.dtype:
            return stored
        if self._computed.shape[0] < count:
            self._computed = torch.empty(count, source.shape[1], dtype=self.compute_dtype, device=self.device)
        computed = self._computed[:count].copy_(stored)
        if self.quantised:
            computed.view(-1, self.head_dim).mul_(scales[layer].index_select(0, rows).view(-1, 1))
        return computed

    def clear(self, rows: torch.Tensor) -> None:
        """Set K and V of all layers to zero at these token rows (see :meth:`token_rows`)."""
        for views in (self._key_rows, self._value_rows, self._key_scale_rows, self._value_scale_rows):
            for view in views:
                view.index_fill_(0, rows, 0)

    def blocks(self) -> list[torch.Tensor]:
        """Views of all tensors, [kv_heads x num_blocks, values of a block], with rows in the order of block_rows.

        K of all layers, V of all layers, then the scales of both. The views are valid until the pool is resized.
        """
        return [*self._key_blocks, *self._value_blocks, *self._key_scale_blocks, *self._value_scale_blocks]

    def rows_of(self, block_ids: Sequence[int]) -> torch.Tensor:
        """Rows of :meth:`blocks` for n blocks: int64 [kv_heads x n]. Raises ValueError for ids outside the pool."""
        if block_ids and not 0 <= min(block_ids) <= max(block_ids) < self.num_blocks:
            raise ValueError(f"block ids must be 0 to {self.num_blocks - 1}, not {min(block_ids)} to {max(block_ids)}")
        return self.block_rows(torch.tensor(block_ids, dtype=torch.int64, device=self.device))

    def move(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks, (source, destination) each. All sources are read before any destination is written.

        So the order of pairs is of no matter, and a block may be source and destination. Raises ValueError for an id
        outside the pool and for a destination named twice; then nothing was copied.
        """
        if not pairs:
            return
        destinations = [destination for _, destination in pairs]
        if len(set(destinations)) != len(destinations):
            raise ValueError("two blocks cannot move to the same destination")
        sources, targets = self.rows_of([source for source, _ in pairs]), self.rows_of(destinations)
        for view in self.blocks():
            view.index_copy_(0, targets, view.index_select(0, sources))

    def copy_from(self, other: KVStore, sources: Mapping[int, int]) -> None:
        """Copy whole blocks of another store of the same type: block id here to block id there.

        Raises ValueError for an id outside its store; then nothing was copied.
        """
        if not sources:
            return
        targets, rows = self.rows_of(list(sources)), other.rows_of(list(sources.values()))
        for view, there in zip(self.blocks(), other.blocks(), strict=True):
            view.index_copy_(0, targets, there.index_select(0, rows))

    def free(self) -> None:
        """Let go of all tensors, one by one, and give their memory back to the machine. The store is of no use then."""
        self._drop_views()
        for tensors in (self.keys, self.values, self.key_scales, self.value_scales):
            while tensors:
                tensors.pop()
                time.sleep(FREE_PAUSE)
        give_memory_back(self.device)

    def resize(self, num_blocks: int, on_progress: Callable[[], None] = lambda: None) -> None:
        """Grow or shrink to ``num_blocks`` >= 1, tensor by tensor; blocks below both sizes keep what they hold.
        ``on_progress`` is called after each tensor.

        When memory runs out on the way, the old size is restored (blocks that were to go are zeros then) and the error
        raised. Memory set free goes back to the machine.
        """
        before = self.num_blocks
        groups = (self.keys, self.values, self.key_scales, self.value_scales)
        self._drop_views()
        try:
            for tensors in groups:
                for index in range(len(tensors)):
                    tensors[index] = _resized(tensors[index], num_blocks, self.device)
                    on_progress()
            self.num_blocks = num_blocks
        except BaseException:
            for tensors in groups:
                for index in range(len(tensors)):
                    if tensors[index].shape[1] != before:
                        # By way of host memory: on the device there may be no room for both.
                        tensors[index] = tensors[index].to("cpu", copy=True)
                        tensors[index] = _resized(tensors[index], before, self.device)
            raise
        finally:
            self._make_views()
            give_memory_back(self.device)

    def _make_views(self) -> None:
        """Create the views of the tensors: one row per (head, token), and one row per (head, block)."""
        self.generation = object()
        """Replaced whenever the tensors are. Code that keeps their addresses compares it by identity."""
        rows, width = self.num_kv_heads * self.num_blocks, self.head_dim
        self._key_rows = [tensor.view(-1, width) for tensor in self.keys]
        self._value_rows = [tensor.view(-1, width) for tensor in self.values]
        self._key_blocks = [tensor.view(rows, -1) for tensor in self.keys]
        self._value_blocks = [tensor.view(rows, -1) for tensor in self.values]
        self._key_scale_rows = [tensor.view(-1) for tensor in self.key_scales]
        self._value_scale_rows = [tensor.view(-1) for tensor in self.value_scales]
        self._key_scale_blocks = [tensor.view(rows, -1) for tensor in self.key_scales]
        self._value_scale_blocks = [tensor.view(rows, -1) for tensor in self.value_scales]
        self._scratch = torch.empty(0, BLOCK_SIZE * width, dtype=self.dtype, device=self.device)
        self._computed = torch.empty(0, BLOCK_SIZE * width, dtype=self.compute_dtype, device=self.device)

    def _drop_views(self) -> None:
        """Drop every view, so that a replaced tensor is freed at once."""
        self._key_rows = self._value_rows = self._key_blocks = self._value_blocks = []
        self._key_scale_rows = self._value_scale_rows = self._key_scale_blocks = self._value_scale_blocks = []
        del self._scratch, self._computed


def quantise(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise the rows of ``x`` [n, head_dim] to int8, with one fp32 scale for each row [n].

    The largest magnitude of a row becomes 127. If a row is not finite, neither is its scale.
    """
    x = x.float()
    scale = (x.abs().amax(-1) / 127).clamp_min_(torch.finfo(torch.float32).tiny)
    return (x / scale[:, None]).round_().to(torch.int8), scale


def _resized(tensor: torch.Tensor, num_blocks: int, device: torch.device) -> torch.Tensor:
    """A copy [kv_heads, num_blocks, ...] on ``device``: what both sizes have, and zeros."""
    shape = (tensor.shape[0], num_blocks, *tensor.shape[2:])
    resized = torch.zeros(shape, dtype=tensor.dtype, device=device)
    kept = min(num_blocks, tensor.shape[1])
    resized[:, :kept] = tensor[:, :kept]
    return resized


def give_memory_back(device: torch.device) -> None:
    """Return freed memory that the allocators keep for later to the operating system."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        return
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # only glibc has it, and only glibc needs it
    if trim is not None:
        trim(0)
