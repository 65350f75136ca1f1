"""What came of a simulation, in the numbers that the screens show of a real engine. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from slotdeck.engine.telemetry.windows import percentile


@dataclass
class Outcome:
    """What came of it. Times in seconds; the numbers mean what they mean on the screens."""

    seconds: float = 0.0
    """From the start to the last token."""
    ttfts: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    finished: int = 0
    generated: int = 0
    prompt_tokens: int = 0
    """Of those that were served, cached ones included."""
    cached_tokens: int = 0
    rejected: int = 0
    """Answers 503."""
    gave_up: int = 0
    too_long: int = 0
    preemptions: int = 0
    recomputed_tokens: int = 0
    steps: int = 0
    most_waiting: int = 0
    """Most that waited, those included who only waited for the next step."""
    most_queued: int = 0
    """Most that waited while no slot was free: a shorter queue refuses somebody."""
    most_admitted: int = 0
    pool_bound: bool = False
    """The pool's size mattered: it was full, or somebody waited for room beside a free slot."""

    @property
    def tokens_per_second(self) -> float | None:
        return self.generated / self.seconds if self.seconds > 0 else None

    @property
    def ttft_p50(self) -> float | None:
        return percentile(self.ttfts, 50)

    @property
    def itl_p50(self) -> float | None:
        return percentile(self.gaps, 50)

    @property
    def ttft_p95(self) -> float | None:
        return percentile(self.ttfts, 95)

    @property
    def itl_p95(self) -> float | None:
        return percentile(self.gaps, 95)
