"""What simulated users have seen so far: counts and times, and how they are shown."""

from __future__ import annotations

import time
from collections import Counter, deque
from dataclasses import dataclass, field

from slotdeck.console.load.client import Completion
from slotdeck.engine.telemetry.windows import percentile

MAX_SAMPLES = 200_000
"""Times that are kept for percentiles. A load that runs for days forgets the oldest."""


@dataclass
class Tally:
    """The counts of one load. ``rejected`` counts 503s, ``gave_up`` counts turns that were given up after several."""

    users: int
    started: float = field(default_factory=time.monotonic)
    requests: int = 0
    finished: int = 0
    rejected: int = 0
    gave_up: int = 0
    in_flight: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    last_error: str | None = None
    ttfts: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_SAMPLES))
    gaps: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_SAMPLES))
    unreachable_since: float | None = None
    """Monotonic time of the first failed connection since the server last answered."""
    gone: bool = False
    """The load ended because the server could not be reached for too long."""

    def text_arrived(self, answer: Completion) -> None:
        """Called after each chunk with text."""
        self.reached()
        if answer.gaps:
            self.gaps.append(answer.gaps[-1])
        elif answer.ttft is not None:
            self.ttfts.append(answer.ttft)

    def answered(self, answer: Completion) -> None:
        self.reached()
        self.finished += 1
        self.prompt_tokens += answer.prompt_tokens or 0
        self.generated_tokens += answer.generated

    def failed(self, kind: str, message: str) -> None:
        self.errors[kind] += 1
        self.last_error = message

    def reached(self) -> None:
        self.unreachable_since = None

    def unreachable(self) -> None:
        if self.unreachable_since is None:
            self.unreachable_since = time.monotonic()

    def line(self) -> str:
        """The counts in one line."""
        seconds = time.monotonic() - self.started
        return (
            f"{seconds:.0f} s  in flight {self.in_flight}/{self.users}  answered {self.finished}  503 {self.rejected}"
            f"  errors {self.errors.total()}"
            f"  p95 TTFT {duration(percentile(self.ttfts, 95))}  ITL {duration(percentile(self.gaps, 95))}"
        )

    def table(self) -> list[tuple[str, str]]:
        """The result as rows of name and value."""
        seconds = time.monotonic() - self.started
        kinds = ", ".join(f"{kind}: {count}" for kind, count in self.errors.most_common())
        unanswered = self.requests - self.finished - self.rejected - self.errors.total()
        cut = f", {unanswered} cut off at the end" if unanswered > 0 else ""
        rows = [
            ("users", str(self.users)),
            ("time", f"{seconds:.0f} s"),
            ("requests", f"{self.requests}, {self.finished} answered{cut}"),
            ("503", f"{self.rejected}" + (f", {self.gave_up} turns given up" if self.gave_up else "")),
            ("errors", f"{self.errors.total()}" + (f" ({kinds})" if kinds else "")),
            ("tokens", f"{self.generated_tokens} generated, {self.prompt_tokens} prompt, in answered requests"),
            ("TTFT", f"p50 {_at(self.ttfts, 50)}  p95 {_at(self.ttfts, 95)}  n={len(self.ttfts)}"),
            (
                "ITL",
                f"p50 {_at(self.gaps, 50)}  p95 {_at(self.gaps, 95)}  "
                f"max {duration(max(self.gaps, default=None))}  n={len(self.gaps)}",
            ),
        ]
        if self.last_error:
            rows.append(("last error", self.last_error))
        return rows


def duration(seconds: float | None) -> str:
    """``420 ms``, ``1.50 s``; ``–`` for ``None``."""
    if seconds is None:
        return "–"
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"


def _at(values: deque[float], q: float) -> str:
    return duration(percentile(values, q))
