"""Open connections: how many there may be, and how long the server waits for a client to do its part.

``BoundedProtocol`` is uvicorn's HTTP/1.1 protocol with these limits. uvicorn by itself waits without limit for headers,
for the rest of a body that nobody reads, and for a client that does not take its answer. Every second a sweep checks
all connections, so that a request costs nothing extra.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from slotdeck.engine.server.http_limits import MAX_HEALTH_CONNECTIONS, HttpLimits

log = logging.getLogger("slotdeck.server")

HEALTH_ONLY = "health_only"
"""Key in the ``state`` of an ASGI scope: this connection exceeds a limit and may only ask for ``/health``."""
MAX_SWEEP_SECONDS = 1.0
REPORT_SECONDS = 60.0
"""At most one line about refused connections is logged in this time."""
_HEADERS_LATE = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class Connections:
    """The open connections of one listening socket. Used on the asyncio loop only.

    ``clock`` gives monotonic seconds.
    """

    def __init__(self, limits: HttpLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits
        self._clock = clock
        self._open: dict[BoundedProtocol, None] = {}
        self._health_only: dict[BoundedProtocol, None] = {}  # the oldest first
        self._per_address: Counter[str] = Counter()
        self._refused = 0
        self._reported: float | None = None

    def __len__(self) -> int:
        return len(self._open) + len(self._health_only)

    def protocol(self, **arguments: Any) -> BoundedProtocol:
        """Make the protocol object of a new connection, as uvicorn asks for it."""
        return BoundedProtocol(self, **arguments)

    def add(self, connection: BoundedProtocol, address: str | None) -> bool:
        """Count a new connection. Returns False if it exceeds a limit, so that it may only ask for ``/health``.

        If there are too many of the latter, the oldest is closed. On a unix socket ``address`` is None, and connections
        are not counted by address.
        """
        crowded = address is not None and self._per_address[address] >= self.limits.max_connections_per_address
        if len(self._open) < self.limits.max_connections and not crowded:
            self._open[connection] = None
            if address is not None:
                self._per_address[address] += 1
            return True
        self._refused += 1
        self._report()
        if len(self._health_only) >= MAX_HEALTH_CONNECTIONS:
            oldest = next(iter(self._health_only))
            del self._health_only[oldest]
            oldest.transport.abort()
        self._health_only[connection] = None
        return False

    def remove(self, connection: BoundedProtocol, address: str | None) -> None:
        if connection in self._open:
            del self._open[connection]
            if address is not None:
                self._per_address[address] -= 1
                if not self._per_address[address]:
                    del self._per_address[address]
        self._health_only.pop(connection, None)

    async def sweep(self) -> None:
        """Close connections that exceed a time limit. Runs until it is cancelled."""
        limits = self.limits
        shortest = min(limits.header_timeout, limits.send_timeout, limits.discard_timeout, limits.keep_alive)
        while True:
            await asyncio.sleep(min(MAX_SWEEP_SECONDS, shortest / 4))
            now = self._clock()
            for connection in [*self._open, *self._health_only]:
                connection.check_time(now)
            self._report()

    def _report(self) -> None:
        now = self._clock()
        if self._refused and (self._reported is None or now - self._reported >= REPORT_SECONDS):
            log.warning(
                "refused %d connections: at most %d may be open, %d from one address",
                self._refused,
                self.limits.max_connections,
                self.limits.max_connections_per_address,
            )
            self._refused, self._reported = 0, now


class BoundedProtocol(H11Protocol):
    """One connection. It is counted in ``connections``, which closes it if it exceeds a time limit."""

    def __init__(self, connections: Connections, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._counted_in = connections
        self._address: str | None = None
        self._state: tuple[str | None, float, object] | None = None
        self._state_began = 0.0
        self._times_resumed = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast("asyncio.Transport", transport))
        self._address = self.client[0] if self.client else None
        if not self._counted_in.add(self, self._address):
            self.app_state = self.app_state | {HEALTH_ONLY: True}

    def connection_lost(self, exc: Exception | None) -> None:
        self._counted_in.remove(self, self._address)
        super().connection_lost(exc)

    def resume_writing(self) -> None:
        self._times_resumed += 1
        super().resume_writing()

    def check_time(self, now: float) -> None:
        """Close the connection if it has waited for the client for too long. ``now``: monotonic seconds."""
        waits_for, limit, *_ = state = self._waits_for()
        if state != self._state:
            self._state, self._state_began = state, now
        elif waits_for is not None and now - self._state_began >= limit:
            if waits_for in ("request", "headers"):
                if waits_for == "headers":
                    self.transport.write(_HEADERS_LATE)
                self.transport.close()
            else:
                self.transport.abort()  # close() would wait until what is buffered has been sent

    def _waits_for(self) -> tuple[str | None, float, object]:
        """What the client has to do next, how many seconds it has, and a value that changes when it makes progress.

        The first is None while it is the server that has to act.
        """
        limits, cycle = self._counted_in.limits, self.cycle
        if self.transport.is_closing():
            return "close", limits.send_timeout, cycle
        if self.flow.write_paused:
            return "read", limits.send_timeout, self._times_resumed
        if cycle is None or cycle.response_complete:
            if self.conn.their_state is h11.SEND_BODY:
                return "body", limits.discard_timeout, cycle
            if self.conn.their_state is h11.IDLE:
                if self.conn.trailing_data[0]:
                    return "headers", limits.header_timeout, cycle
                return "request", limits.header_timeout if cycle is None else limits.keep_alive, cycle
        return None, 0.0, cycle
