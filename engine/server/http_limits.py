"""How much a client may take before a route sees its request: connections, bytes and seconds."""

from __future__ import annotations

import resource
from dataclasses import dataclass, replace

MAX_CONNECTIONS = 4096
"""Open connections to the API."""
MAX_ADMIN_CONNECTIONS = 64
"""Open connections to the admin socket."""
MAX_HEALTH_CONNECTIONS = 16
"""Connections beyond ``MAX_CONNECTIONS``. They are answered 503, except on ``/health``."""
MAX_BODIES = 8
"""Bodies of the largest size that may be read or tokenised at a time, of all clients together."""
MIN_BODY_BYTES = 8 << 20
"""Bytes that all bodies together may have even where one body must be small."""
BACKLOG = 128
"""Connections that the kernel keeps until the loop accepts them."""
RESERVED_FILES = 64
"""File descriptors that connections leave to everything else: the admin socket, history, libraries, ``/proc``."""
_TURNS_TO_REFUSE = 4
"""Turns of the loop from accepting a connection to closing it again. Each may accept a whole backlog."""


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Limits of one listening socket. Times are in seconds, sizes in bytes."""

    max_body: int
    """One request body."""
    max_connections: int = MAX_CONNECTIONS
    backlog: int = BACKLOG
    """Connections that may wait to be accepted."""
    header_timeout: float = 20.0
    """From the first byte of a request, or from the start of a connection, to the end of its headers."""
    body_timeout: float = 60.0
    """From the end of the headers to the end of the body."""
    send_timeout: float = 60.0
    """For a client to take what was sent to it: the buffers of the socket have been full for that long."""
    discard_timeout: float = 10.0
    """For the rest of a body whose request was already answered; it is read and thrown away."""
    keep_alive: float = 30.0
    """Between two requests on one connection."""

    @property
    def max_connections_per_address(self) -> int:
        """One address leaves a quarter of the connections to all others."""
        return max(1, self.max_connections * 3 // 4)

    @property
    def max_body_bytes(self) -> int:
        """All request bodies that are being read or tokenised."""
        return max(MAX_BODIES * self.max_body, MIN_BODY_BYTES)

    @property
    def max_body_bytes_per_user(self) -> int:
        """One user leaves half of the bytes to all others."""
        return self.max_body_bytes // 2


def limits_of_this_process(max_body: int) -> HttpLimits:
    """The default limits, with no more connections than this process has file descriptors for.

    Raises the soft limit of open files towards the hard one first, as far as it is needed.
    """
    most = HttpLimits(max_body)
    reserved = MAX_HEALTH_CONNECTIONS + RESERVED_FILES
    needed = most.max_connections + _TURNS_TO_REFUSE * most.backlog + reserved
    files = _open_files(needed)
    if files >= needed:
        return most
    # What is left is shared between connections that are served and those about to be refused.
    left = max(8, files - reserved)
    backlog = min(most.backlog, left // 2 // _TURNS_TO_REFUSE)
    return replace(most, max_connections=left - _TURNS_TO_REFUSE * backlog, backlog=backlog)


def _open_files(wanted: int) -> int:
    """How many files this process may have open, after it asked for ``wanted``."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    raised = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if raised > soft:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
            return raised
        except (OSError, ValueError):
            pass  # a sandbox may forbid it
    return soft
