"""The part of a runner that deals with the pool's tensors, for runners without a model."""

from __future__ import annotations

from collections.abc import Sequence


class NoTensors:
    """Implements what the loop calls on a runner besides ``run``, and remembers the calls."""

    block_bytes = 1000
    most_blocks = 1000

    def __init__(self) -> None:
        self.resized: list[int] = []
        self.moved: list[tuple[int, int]] = []
        self.forgotten = 0

    def resize(self, num_blocks: int) -> None:
        if num_blocks > self.most_blocks:
            raise ValueError(f"at most {self.most_blocks * 16} tokens fit into memory")
        self.resized.append(num_blocks)

    def move(self, pairs: Sequence[tuple[int, int]]) -> None:
        self.moved += pairs

    def forget_swapped(self) -> None:
        self.forgotten += 1

    def part_seconds(self) -> dict[str, float]:
        return {}
