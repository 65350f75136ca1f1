"""Reports clients that send invalid requests, with at most one sentence per minute for each client.

The admin must see a client that repeats an invalid request in a loop, but it must not flood the event log.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

QUIET_SECONDS = 60.0
"""Minimum time between two sentences about one client."""
MAX_CLIENTS = 1024
"""Clients that are tracked at the same time; others only appear in the counters."""


@dataclass(slots=True)
class _Refused:
    count: int
    reason: str
    quiet_until: float


class RefusedClients:
    """Collects refusals. The caller holds a lock. ``clock`` gives monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._clients: dict[str, _Refused] = {}

    def add(self, user: str, reason: str) -> None:
        """A request of ``user`` was refused for ``reason``."""
        client = self._clients.get(user)
        if client is not None:
            client.count, client.reason = client.count + 1, reason
        elif len(self._clients) < MAX_CLIENTS:
            self._clients[user] = _Refused(1, reason, self._clock())

    def due(self) -> list[tuple[str, str]]:
        """The clients that are due for a report now, each with its sentence."""
        if not self._clients:
            return []
        now = self._clock()
        reports: list[tuple[str, str]] = []
        for user, client in list(self._clients.items()):
            if client.quiet_until > now:
                continue
            if not client.count:
                del self._clients[user]
                continue
            reports.append((user, _sentence(user, client)))
            client.count, client.quiet_until = 0, now + QUIET_SECONDS
        return reports


def _sentence(user: str, client: _Refused) -> str:
    if client.count == 1:
        return f"{user}: a request refused as invalid: {client.reason}"
    return f"{user}: {client.count} requests refused as invalid, the last: {client.reason}"
