"""Finds a request for the admin API, in the log of requests and in the newest frame."""

from __future__ import annotations

from slotdeck.engine.telemetry.frame import Frame
from slotdeck.engine.telemetry.requests.detail import RequestDetail
from slotdeck.engine.telemetry.requests.log import RequestLog
from slotdeck.engine.telemetry.requests.sentence import describe


def find_request(log: RequestLog, frame: Frame, request_id: str) -> RequestDetail | None:
    """What is known of a request that waits, runs or ended lately; ``None`` if there is none with this id."""
    detail = log.detail(request_id)
    for position, waiter in enumerate(frame.waiting, 1):
        if waiter.request_id == request_id:
            detail = RequestDetail(
                request_id=request_id,
                user=waiter.user,
                state="waiting",
                arrived=None if waiter.waited is None else frame.time - waiter.waited,
                age=waiter.waited,
                prompt_tokens=waiter.prompt_tokens,
                queue_wait=waiter.waited,
                position=position,
                estimate=waiter.estimate,
            )
    if detail is None:
        return None
    slot = next((slot for slot in frame.slots if slot.request_id == request_id), None)
    if slot is not None and slot.state != "idle":
        block_size = frame.pool.block_size
        held = None if slot.blocks is None or block_size is None else slot.blocks * block_size
        known = {"state": slot.state, "kv_tokens": held, "cached_tokens": slot.cached_tokens}
        detail = detail.model_copy(update=known)
    return detail.model_copy(update={"why": describe(detail)})
