"""Every call to a route that generates is counted when it arrives, and exactly once when it ends.

received = finished + cancelled + failed + rejected + invalid + in flight. Requests that the engine has accepted are
counted by the engine when they end; here is counted what never gets there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from slotdeck.engine.server.client_watch import ClientDisconnectedError
from slotdeck.engine.server.errors import QUEUE_FULL, TOO_LONG, ApiError
from slotdeck.engine.telemetry.telemetry import Telemetry


@dataclass(slots=True)
class ReceivedCall:
    """A call that was received and has not ended. It stands for one request until the number is known."""

    telemetry: Telemetry
    num_requests: int = 1
    accepted: bool = False
    """The engine has its requests, and counts their ends."""

    def set_num_requests(self, number: int) -> None:
        """The call asks for that many choices, each of which is a request to the engine."""
        for _ in range(number - self.num_requests):
            self.telemetry.count_received()
        self.num_requests = number


@contextmanager
def receive_call(telemetry: Telemetry, user: str) -> Iterator[ReceivedCall]:
    """Count the call; when the block raises before the engine has accepted it, count that end for all its requests."""
    telemetry.count_received()
    call = ReceivedCall(telemetry)
    try:
        yield call
        if not call.accepted:
            raise RuntimeError("the call was neither handed to the engine nor refused")
    except BaseException as error:
        if not call.accepted:
            _count_end(telemetry, user, error, call.num_requests)
        raise


def _count_end(telemetry: Telemetry, user: str, error: BaseException, num_requests: int) -> None:
    if isinstance(error, ApiError) and error.code == QUEUE_FULL:
        return  # the engine itself counts those that it refuses so
    if isinstance(error, ApiError) and error.status == 503:
        telemetry.count_rejected(user, error.message, num_requests)
        return
    for _ in range(num_requests):
        if isinstance(error, ClientDisconnectedError | asyncio.CancelledError):
            telemetry.count_cancelled_before_queue()
        elif isinstance(error, ApiError) and error.code == TOO_LONG:
            telemetry.count_too_long(user, error.message)
        elif isinstance(error, ApiError) and error.status < 500:
            telemetry.count_invalid(user, error.logged)
        else:
            telemetry.count_failed_before_queue()
