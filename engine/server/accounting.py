"""Counts each call to a route that generates: once when it arrives, and once when it ends.

At any time, received = finished + cancelled + failed + rejected + invalid + in flight. The engine counts the ends of
the requests that it has accepted. This module counts those that never get there.
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
    """A call that was received and has not ended. It counts as one request until the real number is known."""

    telemetry: Telemetry
    num_requests: int = 1
    accepted: bool = False
    """True once the engine has accepted the requests, and so counts their ends."""

    def set_num_requests(self, number: int) -> None:
        """The call asks for ``number`` choices. Each is one request to the engine."""
        for _ in range(number - self.num_requests):
            self.telemetry.count_received()
        self.num_requests = number


@contextmanager
def receive_call(telemetry: Telemetry, user: str) -> Iterator[ReceivedCall]:
    """Count a received call. If the block raises before the engine has accepted it, count the end of its requests.

    A block that ends without either raises RuntimeError.
    """
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


def count_refused_body(telemetry: Telemetry, user: str, reason: str) -> None:
    """Count a call that was refused with 503 before its body was read."""
    telemetry.count_received()
    telemetry.count_rejected(user, reason)


def _count_end(telemetry: Telemetry, user: str, error: BaseException, num_requests: int) -> None:
    if isinstance(error, ApiError) and error.code == QUEUE_FULL:
        return  # the engine has counted it
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
