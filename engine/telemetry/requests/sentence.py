"""Says in one sentence why a request waited and why it paused."""

from __future__ import annotations

from slotdeck.engine.core.events import PreemptionCause
from slotdeck.engine.telemetry.requests.detail import RequestDetail

SHORT_WAIT = 0.1
"""Seconds in the queue; shorter waits are not worth a clause."""
LONG_PREFILL = 1.0
"""Seconds of prefill that are worth a clause."""
LONG_GAP = 3.0
"""A gap of at least this many times the typical one is a pause."""

_SINCE: dict[PreemptionCause, str] = {
    "pool_full": "the KV pool was full",
    "pool_shrunk": "the KV pool was made smaller",
    "step_failed": "a step failed",
}
_WHILE = _SINCE | {"pool_full": "the KV pool is full"}


def describe(detail: RequestDetail) -> str:
    """One sentence from the numbers of ``detail``: its causes of waiting, in the order in which they happened."""
    clauses = [clause for clause in (_queue(detail), _prefill(detail), _pause(detail), _end(detail)) if clause]
    if not clauses:
        clauses = [_smooth(detail)]
    sentence = "; ".join(clauses)
    return sentence[0].upper() + sentence[1:] + "."


def _seconds(value: float) -> str:
    return f"{value * 1000:.0f} ms" if value < 0.9995 else f"{value:.1f} s" if value < 99.95 else f"{value:.0f} s"


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _others(number: int, verb: str = "") -> str:
    people = "one other" if number == 1 else f"{number} others"
    return f"{people} {verb}".rstrip()


def _queue(detail: RequestDetail) -> str:
    wait = detail.queue_wait
    if detail.state == "waiting":
        place = f"number {detail.position} in the queue" if detail.position else "in the queue"
        start = "" if detail.estimate is None else f", likely to start in about {_seconds(detail.estimate)}"
        return f"waiting for {_seconds(wait or 0)}, {place}{start}"
    never_started = detail.slot is None and detail.state in ("cancelled", "rejected")
    if wait is None or (wait < SHORT_WAIT and not never_started):
        return ""
    reasons = []
    if detail.busy:
        reasons.append(f"{_others(detail.busy)} held {'a slot' if detail.busy == 1 else 'slots'}")
    if detail.ahead:
        reasons.append(f"{_others(detail.ahead, 'went')} first")
    because = f": {' and '.join(reasons)}" if reasons else ""
    if never_started:
        ended = "refused" if detail.state == "rejected" else "cancelled"
        return f"never started, {ended} after {_seconds(wait)} in the queue{because}"
    freed = f" until a request of {detail.freed_by} ended" if detail.freed_by else ""
    return f"waited {_seconds(wait)} in the queue{because}{freed}"


def _prefill(detail: RequestDetail) -> str:
    first = [chunk for chunk in detail.chunks if not chunk.again]
    took = detail.prefill
    if took is None or took < LONG_PREFILL or not first:
        return ""
    tokens, steps = sum(chunk.tokens for chunk in first), sum(chunk.steps for chunk in first)
    others, streams = sum(chunk.others for chunk in first), max(chunk.streams for chunk in first)
    lost = sum(stall.seconds or 0 for stall in detail.stalls if stall.at < (detail.ttft or 0))
    text = f"its {_counted(tokens, 'prompt token')} took {_seconds(took)} in {_counted(steps, 'step')}"
    shared = []
    if streams:
        shared.append(_others(streams, "writing"))
    if others:
        shared.append(f"{_counted(others, 'prompt token')} of others")
    if shared:
        text += f", shared with {' and '.join(shared)}"
    return f"{text}, preempted for {_seconds(lost)} of it" if lost >= SHORT_WAIT else text


def _pause(detail: RequestDetail) -> str:
    if detail.preemptions:
        times = "once" if detail.preemptions == 1 else f"{detail.preemptions} times"
        again = f", {_counted(detail.recomputed_tokens, 'token')} computed twice" if detail.recomputed_tokens else ""
        if any(stall.swapped for stall in detail.stalls):
            again += ", its KV copied to host memory and back"
        now = detail.state in ("preempted", "swapped")
        paused = (
            f"paused now, {_seconds(detail.stalled or 0)} so far," if now else f"paused {_seconds(detail.stalled or 0)}"
        )
        causes = list(dict.fromkeys(stall.cause for stall in detail.stalls)) or ["pool_full"]
        because = " and ".join((_WHILE if now else _SINCE)[cause] for cause in causes)
        return f"{paused} because {because}: preempted {times}{again}"
    longest = detail.long_gaps[0] if detail.long_gaps else None
    if longest is None or longest.seconds < LONG_GAP * (detail.gap_p50 or 0):
        return ""
    typical = f", {_seconds(detail.gap_p50)} is usual" if detail.gap_p50 else ""
    return f"its longest gap of {_seconds(longest.seconds)} came from {longest.text}{typical}"


def _end(detail: RequestDetail) -> str:
    if detail.state == "rejected":
        return detail.failure or ""
    return f"failed: {detail.failure}" if detail.state == "failed" and detail.failure else ""


def _smooth(detail: RequestDetail) -> str:
    if detail.ttft is None:
        return "nothing held it up: it has a slot and its prompt is being read"
    text = f"nothing held it up: first token after {_seconds(detail.ttft)}"
    return text + (f", longest gap {_seconds(max(detail.gaps))}" if detail.gaps else "")
