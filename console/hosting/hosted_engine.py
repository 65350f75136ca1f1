"""The engine that `slotdeck` itself started: its log, and how a later `slotdeck` recognises it.

Standard library only, since a console is painted before settings and frames are imported.
"""

from __future__ import annotations

import time
from pathlib import Path

from slotdeck.engine.paths import state_folder


def found_notice(uptime: float | None, pid: int | None, now: float) -> str:
    """A sentence about an engine that was already running. ``uptime`` is in seconds, ``now`` is the wall clock."""
    return f"engine found, running since {_started_at(uptime, now)}, pid {pid or 'unknown'}"


def _started_at(uptime: float | None, now: float) -> str:
    if uptime is None:
        return "an unknown time"
    started, today = time.localtime(now - uptime), time.localtime()
    return time.strftime("%H:%M" if started[:3] == today[:3] else "%Y-%m-%d %H:%M", started)


def engine_log() -> Path:
    """The log of an engine that `slotdeck` started."""
    return state_folder() / "engine.log"


def is_hosted(socket: Path, boot_id: str) -> bool:
    """True if `slotdeck` itself started the engine ``boot_id``."""
    try:
        return hosted_marker(socket).read_text() == boot_id
    except OSError:
        return False


def hosted_marker(socket: Path) -> Path:
    """The file with the boot id of the engine that `slotdeck` itself started, so that a later one may stop it."""
    return socket.with_name(socket.name + ".hosted")
