"""What the admin API tells of one request: where its time went, step by step, and why it waited or paused.

``None`` means unknown. Times are seconds; ``at`` counts from the arrival of the request. No text of prompt or answer.
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
"""The letter of each cause of a long gap. ``.`` stands for an ordinary gap."""


class PrefillChunk(Part):
    """Prefill of this request in one step. If there are very many, the last chunk adds up several steps."""

    at: float
    """When the first of its steps began."""
    seconds: float
    """Duration of its steps, added up."""
    steps: int
    tokens: int
    others: int
    """Prefill tokens of other requests in the same steps."""
    streams: int
    """Highest number of requests that decoded in one of the steps."""
    again: bool
    """The tokens had been computed before and were lost in a preemption."""


class StallInfo(Part):
    """One preemption: the request lost its KV and had to stop."""

    at: float
    seconds: float | None
    """Until the request was resumed or ended; None: it still waits."""
    tokens: int | None
    """Computed tokens whose KV lost its blocks."""
    swapped: bool = False
    """True: the KV was copied to host memory, to be copied back. False: it was to be computed again."""
    cause: PreemptionCause = "pool_full"


class GapInfo(Part):
    """A gap between two tokens that is long for this request, and its cause."""

    at: float
    """When it ended."""
    seconds: float
    cause: Cause
    text: str
    """The cause in words."""


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
    """Prompt tokens that were found in the prefix cache instead of computed."""
    output_tokens: int | None = None
    max_tokens: int | None = None
    kv_tokens: int | None = None
    """Tokens of the KV pool that its blocks take."""
    intake: float | None = None
    queue_wait: float | None = None
    """Until now, if it still waits."""
    prefill: float | None = None
    ttft: float | None = None
    position: int | None = None
    """Place in the queue, from 1, if it waits."""
    estimate: float | None = None
    """Seconds until it likely starts, if it waits."""
    busy: int | None = None
    """Requests that held a slot when it entered the queue."""
    ahead: int | None = None
    """Requests that were admitted while it waited."""
    freed_by: str | None = None
    """User of the request that ended last before its admission."""
    chunks: tuple[PrefillChunk, ...] = ()
    gaps: tuple[float, ...] = ()
    """Oldest first; at most the last 4095."""
    gap_causes: str = ""
    """One letter for each gap, of :data:`CAUSE_LETTERS` or ``.``."""
    gap_p50: float | None = None
    gap_p95: float | None = None
    long_gaps: tuple[GapInfo, ...] = ()
    """The longest of the long gaps, longest first."""
    stalls: tuple[StallInfo, ...] = ()
    preemptions: int | None = None
    recomputed_tokens: int | None = None
    stalled: float | None = None
    settings: LimitInfo | None = None
    """The settings in force when it was admitted; ``None`` before that."""
    changes: tuple[ChangeInfo, ...] = ()
    finish_reason: str | None = None
    failure: str | None = None
    why: str = ""
    """One sentence that says why it waited and why it paused."""
