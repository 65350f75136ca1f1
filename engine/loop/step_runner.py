"""What the loop asks of whoever computes its steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from slotdeck.engine.core.step import ModelRunnerOutput, SchedulerOutput


class StepRunner(Protocol):
    """What computes plans and holds the tensors; ``slotdeck.engine.model.runner.Runner``, or a model-free one in tests.

    Called by the loop's thread only, between steps but for ``run``.
    """

    @property
    def block_bytes(self) -> int: ...

    def run(self, plan: SchedulerOutput) -> ModelRunnerOutput: ...

    def resize(self, num_blocks: int) -> None: ...

    def move(self, pairs: Sequence[tuple[int, int]]) -> None: ...

    def forget_swapped(self) -> None: ...

    def part_seconds(self) -> dict[str, float]:
        """What each part of all steps so far has taken, where it measures that. Any thread may ask, at any time."""
        ...
