"""Where the time of steps goes: added up by the loop, told as a :class:`Profile`. Costs microseconds, so always on."""

from __future__ import annotations

import threading
import time
from collections import defaultdict

from pydantic import Field

from slotdeck.engine.telemetry.frame import Part


class Profile(Part):
    """Sums since the engine's start, in seconds; what happened in between is the difference of two."""

    steps: int = 0
    """Committed steps."""
    tokens: int = 0
    """Generated tokens."""
    wall: float = 0.0
    """From the beginning of a step's plan to the end of its hand-over."""
    parts: dict[str, float] = Field(default_factory=dict)
    """``plan``, ``lay_out``, ``forward``, ``sampling``, ``commit``, ``hand_over``: one after another in a step. And
    what the kernels measured within ``forward``, by their own names; nothing where torch computes."""
    server_cpu: float = 0.0
    """Processor time of the thread that speaks HTTP, which runs beside the steps."""
    process_cpu: float = 0.0
    """Processor time of all threads."""

    def since(self, before: Profile) -> Profile:
        """What came after ``before``, an earlier profile of the same engine."""
        return Profile(
            steps=self.steps - before.steps,
            tokens=self.tokens - before.tokens,
            wall=self.wall - before.wall,
            parts={name: seconds - before.parts.get(name, 0.0) for name, seconds in self.parts.items()},
            server_cpu=self.server_cpu - before.server_cpu,
            process_cpu=self.process_cpu - before.process_cpu,
        )


class StepProfiler:
    """The sums behind a :class:`Profile`. Any thread may call any method."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._steps = self._tokens = 0
        self._wall = 0.0
        self._parts: defaultdict[str, float] = defaultdict(float)

    def add(self, wall: float, tokens: int, parts: dict[str, float]) -> None:
        """One step."""
        with self._lock:
            self._steps += 1
            self._tokens += tokens
            self._wall += wall
            for name, seconds in parts.items():
                self._parts[name] += seconds

    def profile(self, within: dict[str, float]) -> Profile:
        """With ``within``, the sums that the kernels keep themselves. Called in the thread that speaks HTTP, whose
        processor time it tells."""
        with self._lock:
            steps, tokens, wall, parts = self._steps, self._tokens, self._wall, dict(self._parts)
        return Profile(
            steps=steps,
            tokens=tokens,
            wall=wall,
            parts=parts | within,
            server_cpu=time.thread_time(),
            process_cpu=time.process_time(),
        )
