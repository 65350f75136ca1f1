"""The engine that `slotdeck` itself started: its log, and how a later `slotdeck` recognises it.

Standard library only, since a console is painted before settings and frames are imported.
"""

from __future__ import annotations

import time
from pathlib import Path

from slotdeck.engine.paths import state_folder


def found_notice(uptime: float | None, pid: int | None, now: float) -> str:
    """That an engine ran already, since when and as which process. Seconds; ``now`` is wall clock."""
    return f"engine of {_started_at(uptime, now)} found, pid {pid or 'unknown'}"


def _started_at(uptime: float | None, now: float) -> str:
    if uptime is None:
        return "unknown start"
    started, today = time.localtime(now - uptime), time.localtime()
    return time.strftime("%H:%M" if started[:3] == today[:3] else "%Y-%m-%d %H:%M", started)


def engine_log() -> Path:
    """What an engine that `slotdeck` started writes."""
    return state_folder() / "engine.log"


def is_hosted(socket: Path, boot_id: str) -> bool:
    """True if `slotdeck` itself started the engine ``boot_id``."""
    try:
        return hosted_marker(socket).read_text() == boot_id
    except OSError:
        return False


def hosted_marker(socket: Path) -> Path:
    """Holds the boot id of the engine that `slotdeck` itself started: a later `slotdeck` may stop that one."""
    return socket.with_name(socket.name + ".hosted")
