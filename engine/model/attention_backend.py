"""The contract of an attention backend, and how a step describes its tokens to one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from slotdeck.engine.model.config import ModelConfig
from slotdeck.engine.model.kv_store import KVStore
from slotdeck.engine.settings import BLOCK_SIZE


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive tokens of one sequence in the flat batch: positions ``start`` to ``start + count - 1``."""

    start: int
    count: int
    blocks: Sequence[int]
    """Block ids of the sequence, from its first token on. There are enough of them to hold the last position."""

    @property
    def num_blocks(self) -> int:
        """Blocks that hold the sequence up to the last position of the span."""
        return (self.start + self.count - 1) // BLOCK_SIZE + 1

    def slots(self) -> list[int]:
        """Where K and V of each token go in the pool, block x 16 + offset. Raises ValueError if blocks are missing."""
        if len(self.blocks) < self.num_blocks:
            raise ValueError(f"a sequence of {self.start + self.count} tokens has only {len(self.blocks)} blocks")
        blocks = self.blocks
        return [
            blocks[at // BLOCK_SIZE] * BLOCK_SIZE + at % BLOCK_SIZE for at in range(self.start, self.start + self.count)
        ]


def sort_key(span: Span) -> tuple[bool, int]:
    """Sorts the spans of a flat batch: first those of one token (decodes), longest first; then the chunks."""
    return span.count > 1, -span.num_blocks


class AttentionBackend(Protocol):
    """Attention over the paged KV pool.

    A backend decides how K and V lie in memory, and it owns all code that depends on that: it allocates the store
    (which copies, moves and resizes whole blocks), prepares the metadata of a step, writes K and V, and attends. So a
    backend with another memory layout brings its own store and changes nothing outside.
    """

    def allocate(self, config: ModelConfig, num_blocks: int, dtype: torch.dtype) -> KVStore:
        """Allocate the pool: K and V of all layers for ``num_blocks`` blocks, all zeros."""
        ...

    def build_metadata(self, spans: Sequence[Span], slot_mapping: Sequence[int], store: KVStore) -> Any:
        """Everything about a step that its layers share: what to write, what to read, what to mask.

        ``spans`` are in the order of the flat batch, which is that of :func:`sort_key`. ``slot_mapping`` [T] says where
        each token's K and V go: block x 16 + offset. Raises ValueError if a block table is too short or names a block
        outside the pool.
        """
        ...

    def write(self, store: KVStore, layer: int, metadata: Any, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Store K and V of the step, [T, kv_heads, head_dim] of any float type."""
        ...

    def attend(self, store: KVStore, layer: int, metadata: Any, query: torch.Tensor, out: torch.Tensor) -> None:
        """Attend with ``query`` [T, heads, head_dim] fp32 to ``layer`` of the pool; the result goes to ``out``.

        ``out`` is [T, heads, head_dim] of any float type. K and V are read back as they are stored, those of the same
        step included.
        """
        ...
