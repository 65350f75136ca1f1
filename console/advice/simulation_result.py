"""The result of a simulation, in the numbers that the screens show of a real engine."""

from __future__ import annotations

from dataclasses import dataclass, field

from slotdeck.engine.telemetry.windows import percentile


@dataclass
class SimulationResult:
    """What the users got. Times are in seconds and mean what they mean on the screens."""

    seconds: float = 0.0
    """From the start to the last token."""
    ttfts: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    finished: int = 0
    generated: int = 0
    prompt_tokens: int = 0
    """Of admitted requests, cached tokens included."""
    cached_tokens: int = 0
    rejected: int = 0
    """Refusals with 503. A message that was sent again may be refused several times."""
    gave_up: int = 0
    """Messages that their user gave up after several refusals."""
    too_long: int = 0
    preemptions: int = 0
    recomputed_tokens: int = 0
    steps: int = 0
    max_waiting: int = 0
    """The most requests that waited at once, including those that only waited for the next step."""
    max_queued: int = 0
    """The most requests that waited while no slot was free. A shorter queue would have refused one of them."""
    max_admitted: int = 0
    """The most requests that held a slot at once."""
    pool_bound: bool = False
    """The size of the pool mattered: the pool was full, or a request waited for room while a slot was free."""

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
