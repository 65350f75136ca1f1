"""The part of a runner that deals with the pool's tensors, for runners without a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence


class FakePool:
    """Stands for the tensors of a pool: which block of the pool before each of its blocks was copied from."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.copied: dict[int, int] = {}


class NoTensors:
    """Implements what the loop calls on a runner besides ``run``, and remembers the calls."""

    block_bytes = 1000
    max_blocks = 1000

    def __init__(self) -> None:
        self.resized: list[int] = []
        """Sizes that came into force, in blocks."""
        self.moved: list[tuple[int, int]] = []
        self.forgotten = 0
        self.freed = 0
        """Pools that were given back."""
        self.room_for_both = True
        """Whether memory holds a second pool beside the one in use."""
        self.pool: FakePool | None = None
        """The pool in use; ``None``: that of the start."""

    def allocate_pool(self, num_blocks: int) -> FakePool | None:
        self._check(num_blocks)
        return FakePool(num_blocks) if self.room_for_both else None

    def copy_blocks(self, pool: FakePool, sources: Mapping[int, int]) -> None:
        pool.copied |= sources

    def use_pool(self, pool: FakePool) -> FakePool:
        before, self.pool = self.pool or FakePool(0), pool
        self.resized.append(pool.num_blocks)
        return before

    def free_pool(self, pool: FakePool) -> None:
        self.freed += 1

    def resize(self, num_blocks: int, on_progress: Callable[[], None] = lambda: None) -> None:
        self._check(num_blocks)
        self.resized.append(num_blocks)

    def _check(self, num_blocks: int) -> None:
        if num_blocks > self.max_blocks:
            raise ValueError(f"at most {self.max_blocks * 16} tokens fit into memory")

    def move(self, pairs: Sequence[tuple[int, int]]) -> None:
        self.moved += pairs

    def forget_swapped(self) -> None:
        self.forgotten += 1

    def part_seconds(self) -> dict[str, float]:
        return {}
