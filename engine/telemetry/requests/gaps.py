"""Finds the long gaps between the tokens of a request, and what the engine did in each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from slotdeck.engine.core.events import PreemptionCause
from slotdeck.engine.telemetry.requests.detail import CAUSE_LETTERS, Cause, GapInfo
from slotdeck.engine.telemetry.windows import percentile

LONG = 2.0
"""A gap is long, and gets a cause, if it is more than this many times the median gap of its request."""
MAX_LONG = 12


@dataclass(frozen=True, slots=True)
class Step:
    """One committed step; shared by all requests that got a token from it."""

    ended: float
    """Monotonic seconds."""
    seconds: float
    decodes: int
    prefills: tuple[tuple[str, str, int], ...]
    """Request id, user and tokens of each prefill chunk."""
    prefill_total: int
    """Prefill tokens of all steps up to and including this one."""
    swapping: bool
    """The machine swapped memory at about that time."""


@dataclass(frozen=True, slots=True)
class Stall:
    """One preemption; monotonic seconds."""

    began: float
    tokens: int
    """Computed tokens whose KV lost its blocks."""
    swapped: bool
    """Their KV was copied to host memory."""
    cause: PreemptionCause
    ended: float | None = None


def explain_gaps(
    tokens: Sequence[Step],
    stalls: Sequence[Stall],
    request_id: str,
    arrival: float,
) -> dict[str, Any]:
    """The fields of :class:`RequestDetail` about gaps. ``tokens`` are the steps that generated them, oldest first."""
    pairs = list(pairwise(tokens))
    gaps = [after.ended - before.ended for before, after in pairs]
    median = percentile(gaps, 50)
    letters: list[str] = []
    found: list[GapInfo] = []
    for (before, after), gap in zip(pairs, gaps, strict=True):
        if median is None or gap <= LONG * median:
            letters.append(".")
            continue
        cause, text = _cause(before, after, gap, stalls, request_id)
        letters.append(CAUSE_LETTERS[cause])
        found.append(GapInfo(at=after.ended - arrival, seconds=gap, cause=cause, text=text))
    found.sort(key=lambda info: info.seconds, reverse=True)
    return {
        "gaps": tuple(gaps),
        "gap_causes": "".join(letters),
        "gap_p50": median,
        "gap_p95": percentile(gaps, 95),
        "long_gaps": tuple(found[:MAX_LONG]),
    }


def _cause(before: Step, after: Step, gap: float, stalls: Sequence[Stall], request_id: str) -> tuple[Cause, str]:
    """What took the time between two tokens, as a cause and in words."""
    for stall in stalls:
        if stall.began < after.ended and (stall.ended is None or stall.ended > before.ended):
            stood = (after.ended if stall.ended is None else stall.ended) - stall.began
            became = "swapped out" if stall.swapped else "lost"
            return "preempted", f"a preemption: {stood:.2f} s without room, {stall.tokens} tokens {became}"
    prefilled = after.prefill_total - before.prefill_total
    if prefilled:
        users = sorted({user for owner, user, _ in after.prefills if owner != request_id})
        whose = f"the prompt of {' and '.join(users[:2])}" if users else "the prompts of others"
        more = f" and {len(users) - 2} more" if len(users) > 2 else ""
        return "prefill", f"{whose}{more}: {prefilled} tokens read first"
    if after.seconds >= gap / 2:
        kind: Cause = "os_swap" if after.swapping else "slow_step"
        meanwhile = " while the machine swapped memory" if after.swapping else ""
        return kind, f"one slow step with {after.decodes} writing{meanwhile}"
    return "between_steps", f"time between steps, beside a step of {after.seconds:.2f} s"
