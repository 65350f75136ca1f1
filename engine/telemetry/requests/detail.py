"""One request's life as the admin API tells it: where its time went, step by step, and why it waited or paused.

``None`` is unknown. All times are seconds; ``at`` counts from the arrival of the request. No text of prompt or answer.
"""

from __future__ import annotations

from typing import Literal

from slotdeck.engine.core.events import PreemptionCause
from slotdeck.engine.telemetry.frame import LimitInfo, Part

RequestState = Literal[
    "waiting", "prefill", "decode", "held", "preempted", "swapped", "finished", "cancelled", "failed", "rejected"
]
Cause = Literal["preempted", "prefill", "os_swap", "slow_step", "between_steps"]


CAUSE_LETTERS: dict[Cause, str] = {
    "preempted": "!", "prefill": "p", "os_swap": "o", "slow_step": "s", "between_steps": "b"
}  # fmt: skip
"""One letter for each cause of a long gap; ``.`` stands for an ordinary gap."""


class PrefillChunk(Part):
    """Prefill of this request in one step, or in several once a request has very many."""

    at: float
    """When the first of the steps began."""
    seconds: float
    """Length of the steps."""
    steps: int
    tokens: int
    others: int
    """Prefill tokens of other requests in the same steps."""
    streams: int
    """Most requests that decoded in one of the steps."""
    again: bool
    """These tokens had been computed before and were lost to a preemption."""


class StallInfo(Part):
    """One preemption: without its KV it cannot go on."""

    at: float
    seconds: float | None
    """Until it was resumed or ended; None: not yet."""
    tokens: int | None
    """Computed tokens that lost their place."""
    swapped: bool = False
    """Their KV was copied to host memory, to be copied back; False: they were to be computed again."""
    cause: PreemptionCause = "pool_full"


class GapInfo(Part):
    """A gap between two tokens that is long for this request, and what filled it."""

    at: float
    """When it ended."""
    seconds: float
    cause: Cause
    text: str
    """The cause as a phrase."""


class ChangeInfo(Part):
    """A setting that changed while the request lived."""

    at: float
    text: str


class RequestDetail(Part):
    """What is known of one request, waiting, running or among the last that ended."""

    request_id: str
    user: str | None = None
    state: RequestState
    slot: int | None = None
    arrived: float | None = None
    """Wall clock, seconds since the epoch; for display only."""
    age: float | None = None
    """From arrival to now, or to its end."""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    """Of the prompt: found in the prefix cache, not computed."""
    output_tokens: int | None = None
    max_tokens: int | None = None
    kv_tokens: int | None = None
    """Room it holds in the KV pool."""
    intake: float | None = None
    queue_wait: float | None = None
    """So far, for one that waits."""
    prefill: float | None = None
    ttft: float | None = None
    position: int | None = None
    """Place in the queue from 1, for one that waits."""
    estimate: float | None = None
    """Seconds until it likely starts, for one that waits."""
    busy: int | None = None
    """Requests that held a slot when it entered the queue."""
    ahead: int | None = None
    """Requests that were admitted while it waited."""
    freed_by: str | None = None
    """User of the request whose end came last before its admission."""
    chunks: tuple[PrefillChunk, ...] = ()
    gaps: tuple[float, ...] = ()
    """Oldest first; at most the last 4095."""
    gap_causes: str = ""
    """One letter for each gap, of :data:`CAUSE_LETTERS` or ``.``."""
    gap_p50: float | None = None
    gap_p95: float | None = None
    long_gaps: tuple[GapInfo, ...] = ()
    """The longest ones, longest first."""
    stalls: tuple[StallInfo, ...] = ()
    preemptions: int | None = None
    recomputed_tokens: int | None = None
    stalled: float | None = None
    settings: LimitInfo | None = None
    """In force at its admission; ``None`` before it."""
    changes: tuple[ChangeInfo, ...] = ()
    finish_reason: str | None = None
    failure: str | None = None
    why: str = ""
    """One sentence: why it waited, why it paused."""
