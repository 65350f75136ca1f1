"""Where the time of steps goes. The loop adds up each part; it costs microseconds, so it is always on."""

from __future__ import annotations

import threading
import time
from collections import defaultdict

from pydantic import Field

from slotdeck.engine.telemetry.frame import Part


class Profile(Part):
    """Sums in seconds since the engine started. The difference of two profiles is what happened between them."""

    steps: int = 0
    """Committed steps."""
    tokens: int = 0
    """Generated tokens."""
    wall: float = 0.0
    """From the start of planning a step to the end of delivering its outputs."""
    parts: dict[str, float] = Field(default_factory=dict)
    """By part: ``plan``, ``lay_out``, ``forward``, ``sampling``, ``commit`` and ``hand_over``, one after another
    in a step. Native kernels add what they measured within ``forward``, under their own names."""
    server_cpu: float = 0.0
    """CPU time of the HTTP thread, which runs in parallel with the steps."""
    process_cpu: float = 0.0
    """CPU time of all threads."""

    def since(self, before: Profile) -> Profile:
        """What was added after ``before``, an earlier profile of the same engine."""
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
        """The sums so far. ``within`` are the sums that the kernels keep themselves. The HTTP thread calls this, so
        ``server_cpu`` is its CPU time."""
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
