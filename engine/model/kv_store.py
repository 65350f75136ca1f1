"""The tensors behind the KV pool.

One K and one V tensor per layer, [kv_heads, num_blocks, 16, head_dim]: head first, so that the blocks of a sequence,
gathered one head after another, are already the matrices that attention multiplies.
"""

from __future__ import annotations

import torch

from engine.model.config import ModelConfig
from engine.settings import BLOCK_SIZE


class KVStore:
    """Preallocated K and V of ``num_blocks`` blocks.

    Invariant between steps: every value is finite, since unused places of a sequence's last block are read with weight
    0, and 0 x NaN would be NaN. So the store starts as zeros, and a value that is not finite is cleared in the step
    that wrote it (:meth:`clear`).
    """

    def __init__(self, config: ModelConfig, num_blocks: int, dtype: torch.dtype, device: torch.device) -> None:
        shape = (config.num_kv_heads, num_blocks, BLOCK_SIZE, config.head_dim)
        self.num_blocks = num_blocks
        self.num_kv_heads = config.num_kv_heads
        self.head_dim = config.head_dim
        self.dtype = dtype
        self.keys = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(config.num_layers)]
        self.values = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(config.num_layers)]
        # Views of the same memory: one row per (head, token), and one row per (head, block).
        self._key_rows = [tensor.view(-1, config.head_dim) for tensor in self.keys]
        self._value_rows = [tensor.view(-1, config.head_dim) for tensor in self.values]
        self._key_blocks = [tensor.view(config.num_kv_heads * num_blocks, -1) for tensor in self.keys]
        self._value_blocks = [tensor.view(config.num_kv_heads * num_blocks, -1) for tensor in self.values]
        self._scratch = torch.empty(0, dtype=dtype, device=device)

    @property
    def bytes_allocated(self) -> int:
        """Bytes of K and V of all layers."""
        return sum(tensor.nbytes for tensor in (*self.keys, *self.values))

    def token_rows(self, slots: torch.Tensor) -> torch.Tensor:
        """Rows to :meth:`write` for ``slots`` [T] (block x 16 + offset): int64 [T x kv_heads], token by token."""
        heads = torch.arange(self.num_kv_heads, device=slots.device) * (self.num_blocks * BLOCK_SIZE)
        return (slots[:, None] + heads).flatten()

    def block_rows(self, blocks: torch.Tensor) -> torch.Tensor:
        """Rows to gather for ``blocks`` [B, n]: int64 [kv_heads x B x n], head by head."""
        heads = torch.arange(self.num_kv_heads, device=blocks.device) * self.num_blocks
        return (heads[:, None] + blocks.flatten()).flatten()

    def write(self, layer: int, rows: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Store K and V [T, kv_heads, head_dim] of any float type, rounded to the type of the store."""
        width = self.head_dim
        self._key_rows[layer].index_copy_(0, rows, keys.to(self.dtype).reshape(-1, width))
        self._value_rows[layer].index_copy_(0, rows, values.to(self.dtype).reshape(-1, width))

    def gather_keys(self, layer: int, block_rows: torch.Tensor) -> torch.Tensor:
        """K of the blocks, [len(block_rows), 16 x head_dim]. Valid until the next gather: the memory is shared."""
        return self._gather(self._key_blocks[layer], block_rows)

    def gather_values(self, layer: int, block_rows: torch.Tensor) -> torch.Tensor:
        """V of the blocks; see :meth:`gather_keys`."""
        return self._gather(self._value_blocks[layer], block_rows)

    def _gather(self, source: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        width = source.shape[1]
        size = rows.shape[0] * width
        if self._scratch.shape[0] < size:
            self._scratch = torch.empty(size, dtype=self.dtype, device=source.device)
        return torch.index_select(source, 0, rows, out=self._scratch[:size].view(-1, width))

    def clear(self, rows: torch.Tensor) -> None:
        """Zero K and V of all layers at token rows (see :meth:`token_rows`)."""
        for tensor in (*self._key_rows, *self._value_rows):
            tensor.index_fill_(0, rows, 0)
