"""What the loop asks of whoever computes its steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from slotdeck.engine.core.step import ModelRunnerOutput, SchedulerOutput


class StepRunner(Protocol):
    """Computes steps and holds the tensors of the KV pool: ``slotdeck.engine.model.runner.Runner``, or a stub in tests.

    Called by the loop's thread only, between steps except for ``run``; the exceptions say so.
    """

    @property
    def block_bytes(self) -> int:
        """Bytes of one block of the pool."""
        ...

    def run(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput: ...

    def allocate_pool(self, num_blocks: int) -> Any:
        """New tensors for a pool of that size, beside those in use; ``None`` if memory cannot hold both.

        Called in a thread of its own while steps run. Raises ValueError, MemoryError or RuntimeError when the pool
        cannot have that size at all.
        """
        ...

    def copy_blocks(self, pool: Any, sources: Mapping[int, int]) -> None:
        """Copy blocks of the pool in use into ``pool``: new block id to the id of the block that it takes over."""
        ...

    def use_pool(self, pool: Any) -> Any:
        """Compute with ``pool`` from the next step on. Cannot fail. Gives the tensors used so far."""
        ...

    def free_pool(self, pool: Any) -> None:
        """Give the memory of a pool that is not in use back to the machine. Called in a thread of its own."""
        ...

    def resize(self, num_blocks: int, on_progress: Callable[[], None] = lambda: None) -> None:
        """Change the size of the pool in use, tensor by tensor, for machines that cannot hold both sizes at once.

        ``on_progress`` is called after each tensor. Raises like ``allocate_pool`` and keeps the old size then.
        """
        ...

    def move(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy blocks within the pool in use, (source, destination) each."""
        ...

    def forget_swapped(self) -> None: ...

    def part_seconds(self) -> dict[str, float]:
        """What each part of all steps so far has taken, where it measures that. Any thread may ask, at any time."""
        ...
