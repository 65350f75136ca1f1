"""The KV pool as numbers: which blocks are free, how many hold each used one. The tensors are in ``model/kv_store``."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from engine.settings import BLOCK_SIZE


class PoolExhaustedError(RuntimeError):
    """More blocks were asked for than are free. Callers check :meth:`BlockPool.can_allocate` first."""


def blocks_for(num_tokens: int) -> int:
    """Blocks that hold ``num_tokens`` tokens."""
    return -(-num_tokens // BLOCK_SIZE)


class BlockPool:
    """Refcounted blocks of :data:`~engine.settings.BLOCK_SIZE` tokens.

    Invariants: the refcount of a block is the number of block tables that hold it; used + free = total; low ids
    are handed out first, so that what is live stays at the low end of the tensors.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"a pool needs at least one block, not {num_blocks}")
        self.num_blocks = num_blocks
        self._refcounts = [0] * num_blocks
        self._free = list(range(num_blocks))  # a heap: sorted lists are heaps

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_used(self) -> int:
        return self.num_blocks - len(self._free)

    @property
    def num_tokens(self) -> int:
        """Tokens the whole pool can hold."""
        return self.num_blocks * BLOCK_SIZE

    def can_allocate(self, count: int) -> bool:
        return count <= len(self._free)

    def allocate(self, count: int) -> list[int]:
        """``count`` block ids with refcount 1, lowest first. Raises PoolExhaustedError and takes nothing."""
        if count > len(self._free):
            raise PoolExhaustedError(f"{count} blocks asked for, {len(self._free)} of {self.num_blocks} free")
        taken = [heapq.heappop(self._free) for _ in range(count)]
        for block_id in taken:
            self._refcounts[block_id] = 1
        return taken

    def share(self, block_ids: Iterable[int]) -> None:
        """One more table holds these blocks. From now on nobody may write them until it is alone again."""
        for block_id in block_ids:
            if self._refcounts[block_id] == 0:
                raise ValueError(f"block {block_id} is free and cannot be shared")
            self._refcounts[block_id] += 1

    def release(self, block_ids: Iterable[int]) -> None:
        """One table less holds these blocks; the last one makes them free."""
        for block_id in block_ids:
            if self._refcounts[block_id] == 0:
                raise ValueError(f"block {block_id} is free already")
            self._refcounts[block_id] -= 1
            if self._refcounts[block_id] == 0:
                heapq.heappush(self._free, block_id)

    def refcount(self, block_id: int) -> int:
        return self._refcounts[block_id]

    def check(self, tables: Iterable[Iterable[int]]) -> None:
        """Raise AssertionError unless refcounts equal the number of ``tables`` holding each block."""
        held = [0] * self.num_blocks
        for table in tables:
            for block_id in table:
                held[block_id] += 1
        wrong = {i: (held[i], count) for i, count in enumerate(self._refcounts) if held[i] != count}
        assert not wrong, f"block id -> (tables, refcount): {wrong}"
        assert len(set(self._free)) == len(self._free), "a block is free twice"
        assert all(self._refcounts[block_id] == 0 for block_id in self._free), "a free block is held"
        assert self.num_used + self.num_free == self.num_blocks
