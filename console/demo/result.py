"""What one row showed, as numbers. Times are the users' own: TTFT from sending to the first text, ITL between texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from slotdeck.console.demo.watch import Watch
from slotdeck.console.load.tally import Tally
from slotdeck.engine.telemetry.windows import percentile


@dataclass
class CallResult:
    """One scripted request. Seconds; ``None``: it did not come to that."""

    role: str
    at: float
    """Sent so long after the act began."""
    ttft: float | None = None
    seconds: float | None = None
    """Sent to last text."""
    longest_gap: float | None = None
    tokens: int = 0
    refused: bool = False
    error: str | None = None
    open: float | None = None
    """Seconds it had waited for its first text when the act ended."""


@dataclass
class Result:
    """Seconds and tokens; ``None`` without samples.

    ``open`` requests had no first text at the end: they count in TTFT and wait with what they had waited by then, so
    those percentiles are then lower bounds and written with ``≥``.
    """

    seconds: float = 0.0
    requests: int = 0
    answered: int = 0
    rejected: int = 0
    errors: int = 0
    last_error: str | None = None
    open: int = 0
    ttft_p50: float | None = None
    ttft_p95: float | None = None
    ttft_max: float | None = None
    ttft_count: int = 0
    itl_p50: float | None = None
    itl_p95: float | None = None
    itl_max: float | None = None
    itl_count: int = 0
    wait_p50: float | None = None
    wait_p95: float | None = None
    wait_max: float | None = None
    wait_count: int = 0
    tokens_per_second: float | None = None
    preemptions: int | None = None
    recomputed_tokens: int | None = None
    stalled_seconds: float | None = None
    most_running: int = 0
    most_waiting: int = 0
    held_share: float = 0.0
    pool_peak: float | None = None
    slots: int | None = None
    queue: int | None = None
    context: int | None = None
    budget: int | None = None
    kv_tokens: int | None = None
    calls: list[CallResult] = field(default_factory=list)
    sentence: str = ""


def result_of(tally: Tally, watch: Watch, calls: Sequence[CallResult] = ()) -> Result:
    """The numbers of a row so far."""
    open_calls = [call.open for call in calls if call.open is not None]
    without_text = open_calls or watch.without_text
    ttfts = [*tally.ttfts, *without_text]
    waits = [*watch.waits.values(), *(open_calls or watch.still_waiting)]
    gaps = list(tally.gaps)
    seconds = watch.seconds
    tokens = watch.increase("generated_tokens")
    stalled = watch.increase("stalled_seconds")
    result = Result(
        seconds=seconds or 0.0,
        requests=tally.requests,
        answered=tally.finished,
        rejected=tally.rejected,
        errors=tally.errors.total(),
        last_error=tally.last_error,
        open=len(without_text),
        ttft_p50=percentile(ttfts, 50),
        ttft_p95=percentile(ttfts, 95),
        ttft_max=max(ttfts, default=None),
        ttft_count=len(ttfts),
        itl_p50=percentile(gaps, 50),
        itl_p95=percentile(gaps, 95),
        itl_max=max(gaps, default=None),
        itl_count=len(gaps),
        wait_p50=percentile(waits, 50),
        wait_p95=percentile(waits, 95),
        wait_max=max(waits, default=None),
        wait_count=len(waits),
        tokens_per_second=tokens / seconds if tokens is not None and seconds else None,
        preemptions=_whole(watch.increase("preemptions")),
        recomputed_tokens=_whole(watch.increase("recomputed_tokens")),
        stalled_seconds=stalled,
        most_running=watch.most_running,
        most_waiting=watch.most_waiting,
        held_share=watch.held_share,
        pool_peak=watch.pool_peak,
        calls=list(calls),
    )
    if watch.newest is not None:
        limits = watch.newest.limits
        for name in ("slots", "queue", "context", "budget", "kv_tokens"):
            setattr(result, name, getattr(limits, name))
    return result


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
