"""Estimates how long a waiting request will wait, from the requests that run now and the ones that ended lately."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

MAX_RETRY_AFTER = 30
MAX_RETRY_JITTER = 2


@dataclass(frozen=True, slots=True)
class Running:
    """What the estimate needs of a request that holds a slot."""

    prefill_left: int
    """Tokens to compute before its next output token."""
    output: int
    max_output: int


@dataclass(frozen=True, slots=True)
class Pace:
    """Recent measurements of finished requests; a field is ``None`` if nothing was measured yet."""

    output: float | None
    """Mean output of the last 20 that finished, tokens."""
    prompt: float | None
    """Mean prompt of the same, tokens."""
    gap: float | None
    """Median ITL of the last minute, else of ten, seconds."""
    prompt_per_second: float | None
    """Prefill rate while there was prefill to do, tokens per second."""


def wait_estimates(
    running: Sequence[Running], waiting: int, slots: int, pace: Pace, *, whole_batches: bool = False
) -> list[float | None]:
    """Seconds until each of ``waiting`` requests likely gets a slot, in queue order.

    It assumes that each running request ends at the usual output length, at the present ITL. A request that is longer
    already is assumed to write half of what it may still write. Each request that follows takes the usual time. If
    more requests run than there are ``slots``, the surplus ends without a successor. With ``whole_batches`` no request
    enters before all running ones have ended. Until a request has finished, the answer is a list of ``None``.
    """
    if pace.output is None or pace.gap is None:
        return [None] * waiting
    rate = pace.prompt_per_second or 0.0

    def seconds(prefill: float, output: float) -> float:
        return (prefill / rate if rate else 0.0) + output * (pace.gap or 0.0)

    ends = []
    for request in running:
        usual = min(pace.output, request.max_output)
        left = usual - request.output
        if left <= 0:
            left = (request.max_output - request.output) / 2
        ends.append(seconds(request.prefill_left, max(1.0, left)))
    if whole_batches:
        ends = [max(ends, default=0.0)] * slots
    heapq.heapify(ends)
    for _ in range(len(ends) - slots):
        heapq.heappop(ends)
    estimates: list[float | None] = []
    usual = seconds(pace.prompt or 0.0, pace.output)
    for _ in range(waiting):
        start = heapq.heappop(ends) if len(ends) >= slots else 0.0
        estimates.append(start)
        heapq.heappush(ends, start + usual)
    return estimates


def retry_after(wait: float | None, jitter: int) -> int:
    """Whole seconds for the Retry-After of a refused request.

    ``wait``: estimated seconds until there is room, None if unknown. ``jitter``: 0 to MAX_RETRY_JITTER, drawn for each
    request so that refused clients do not come back together.
    """
    return max(1, round(min(wait or 1.0, MAX_RETRY_AFTER))) + jitter
