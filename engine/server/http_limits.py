"""Limits on what clients may use: connections, bytes of bodies, and time."""

from __future__ import annotations

import resource
from dataclasses import dataclass, replace

MAX_CONNECTIONS = 4096
"""Open connections to the API."""
MAX_ADMIN_CONNECTIONS = 64
"""Open connections to the admin socket."""
MAX_HEALTH_CONNECTIONS = 16
"""Connections beyond the limit that are still answered: with 503, except on ``/health``."""
MAX_BODIES = 8
"""How many bodies of the largest size all clients together may have in progress (being read or tokenized)."""
MIN_BODY_BYTES = 8 << 20
"""The limit for all bodies together is at least this, even if ``max_body`` is small."""
BACKLOG = 128
"""Connections that the kernel keeps until the loop accepts them."""
RESERVED_FILES = 64
"""File descriptors kept for everything else: the admin socket, history, libraries, ``/proc``."""
_TURNS_TO_REFUSE = 4
"""Turns of the asyncio loop between accepting a connection and closing it. Each may accept a whole backlog."""


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Limits of one listening socket. Times are in seconds, sizes in bytes."""

    max_body: int
    """One request body."""
    max_connections: int = MAX_CONNECTIONS
    backlog: int = BACKLOG
    """Connections that may wait to be accepted."""
    header_timeout: float = 20.0
    """From the first byte of a request, or from the start of the connection, to the end of its headers."""
    body_timeout: float = 60.0
    """From the end of the headers to the end of the body."""
    send_timeout: float = 60.0
    """How long the buffers towards a client may stay full before the connection is closed."""
    discard_timeout: float = 10.0
    """How long the rest of a body is read and discarded after its request was answered."""
    keep_alive: float = 30.0
    """How long a connection may be idle between two requests."""

    @property
    def max_connections_per_address(self) -> int:
        """Three quarters: one address leaves the rest to all others."""
        return max(1, self.max_connections * 3 // 4)

    @property
    def max_body_bytes(self) -> int:
        """Bytes of all bodies in progress."""
        return max(MAX_BODIES * self.max_body, MIN_BODY_BYTES)

    @property
    def max_body_bytes_per_user(self) -> int:
        """Half: one user leaves the rest to all others."""
        return self.max_body_bytes // 2


def limits_of_this_process(max_body: int) -> HttpLimits:
    """The default limits, with fewer connections if this process may not open enough files.

    First raises the soft limit of open files, as far as needed and as the hard limit allows.
    """
    defaults = HttpLimits(max_body)
    reserved = MAX_HEALTH_CONNECTIONS + RESERVED_FILES
    needed = defaults.max_connections + _TURNS_TO_REFUSE * defaults.backlog + reserved
    files = _open_files(needed)
    if files >= needed:
        return defaults
    # Half of what is left is for connections that are about to be refused.
    left = max(8, files - reserved)
    backlog = min(defaults.backlog, left // 2 // _TURNS_TO_REFUSE)
    return replace(defaults, max_connections=left - _TURNS_TO_REFUSE * backlog, backlog=backlog)


def _open_files(wanted: int) -> int:
    """How many files this process may have open, after trying to raise the limit to ``wanted``."""
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
