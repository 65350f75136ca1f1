"""What the loop hands to the server: once per step, for each request that has something to tell its client."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from slotdeck.engine.core.events import Event, EventKind
from slotdeck.engine.core.step import ModelRunnerOutput, SchedulerOutput, TokenLogprobs


@dataclass(frozen=True, slots=True)
class Output:
    """What one step (or an end) means for one request's client."""

    request_id: str
    token_ids: list[int]
    time: float
    """Monotonic stamp of the step's end, seconds."""
    finish_reason: str | None = None
    """``stop``, ``length`` or ``cancelled`` when the request has ended without a failure."""
    error: str | None = None
    """Why the request failed or was refused, as a sentence for its client."""
    unserved: bool = False
    """It ended before anything was computed for it, so that trying again later or elsewhere repeats nothing."""
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    """One for each of ``token_ids`` when the request asks for them, else empty."""
    cached_tokens: int = 0
    """Prompt tokens that the prefix cache saved from being computed."""


Deliver = Callable[[list[Output]], None]


def outputs_of(
    scheduler_output: SchedulerOutput,
    result: ModelRunnerOutput,
    before: dict[str, int],
    events: list[Event],
    now: float,
) -> list[Output]:
    """The outputs of a committed step, which ended at ``now``.

    ``before``: tokens (prompt and output) that each sampling request had ahead of the step.
    """
    ends = {event.request.id: end for event in events if (end := end_of(event)) is not None}
    outputs = []
    for row in scheduler_output.rows:
        request = row.request
        tokens = request.token_ids[before[request.id] :] if row.samples else []
        logprobs = [result.logprobs[request.id]] if tokens and request.id in result.logprobs else []
        if request.id in ends:
            outputs.append(replace(ends[request.id], token_ids=tokens, logprobs=logprobs))
        elif tokens:
            outputs.append(Output(request.id, tokens, now, logprobs=logprobs, cached_tokens=request.cached_tokens))
    return outputs


def end_of(event: Event) -> Output | None:
    """What an event that ends a request means for its client, without tokens; ``None`` for other events."""
    request = event.request
    end = Output(request.id, [], event.time, cached_tokens=request.cached_tokens)
    if event.kind is EventKind.FINISHED:
        return replace(end, finish_reason=request.finish_reason.value if request.finish_reason else "stop")
    if event.kind is EventKind.CANCELLED:
        return replace(end, finish_reason="cancelled")
    if event.kind in (EventKind.FAILED, EventKind.REJECTED):
        error = request.failure or "the request failed"
        return replace(end, error=error, unserved=request.timeline.scheduled is None)
    return None
