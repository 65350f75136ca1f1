"""What the scheduler tells: refusals as exceptions, everything else as events."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from slotdeck.engine.core.request import Request


class QueueFullError(RuntimeError):
    """The queue is full: ``waiting`` requests wait of at most ``depth``, and ``wanted`` more were to join them."""

    def __init__(self, waiting: int, depth: int, wanted: int = 1) -> None:
        if not depth:
            text = "the queue is full: nobody may wait (queue 0), and no slot is free"
        else:
            text = f"the queue is full: {waiting} of {depth} waiting"
        super().__init__(_with_wanted(text, wanted))
        self.waiting = waiting
        self.depth = depth


class UserQueueFullError(QueueFullError):
    """One user holds their share of the queue; others still get in. The numbers are those of the user."""

    def __init__(self, waiting: int, depth: int, wanted: int = 1) -> None:
        super().__init__(waiting, depth, wanted)
        text = f"your share of the queue is full: {waiting} of your requests are waiting, and one user may have {depth}"
        self.args = (_with_wanted(text, wanted),)


def _with_wanted(text: str, wanted: int) -> str:
    return text if wanted == 1 else f"{text}, and this request wants {wanted} places"


class RequestTooLargeError(ValueError):
    """Prompt + most output exceed the context, which the whole pool can always hold."""


PreemptionCause = Literal["pool_full", "pool_shrunk", "step_failed"]
"""Why a request lost its KV: another one needed the blocks, the pool was made smaller, or a fault made it unsafe."""


class EventKind(StrEnum):
    """What can happen to a request."""

    ADMITTED = "admitted"
    RESUMED = "resumed"
    PREEMPTED = "preempted"
    FIRST_TOKEN = "first_token"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    FAILED = "failed"
    REJECTED = "rejected"


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a request, at ``time`` on the caller's monotonic clock."""

    kind: EventKind
    request: Request
    time: float
    tokens: int = 0
    """Preempted: computed tokens that lost their place. Resumed: of those, the ones to compute again."""
    stalled: float = 0.0
    """Resumed: seconds that it was preempted for, this time."""
    swapped_bytes: int = 0
    """Preempted and resumed: bytes of KV copied to host memory or back."""
    cause: PreemptionCause = "pool_full"
    """Preempted: why."""
