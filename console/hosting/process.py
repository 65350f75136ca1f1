"""The state of an engine's process, from files beside its socket: whether it lives, who holds its lock, how it ended.

The engine writes its pid into a lock file beside its admin socket before it loads anything. The launcher that started
it learns its exit code and writes that into another file, where every console can read it.
"""

from __future__ import annotations

import fcntl
import os
import signal
from pathlib import Path

STEP_WEDGED = 70
"""Exit code of an engine after a step that did not return."""


def lives(pid: int) -> bool:
    """True while the process runs. A process that has ended but was not yet waited for does not count."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (OSError, IndexError):
        return True


def lock_holder(socket: Path) -> int | None:
    """The pid that holds the engine's lock beside ``socket``, from before it serves until it has ended."""
    return _holder(socket.with_name(socket.name + ".lock"))


def start_lock(socket: Path) -> Path:
    """The lock file that a `slotdeck` holds while it starts an engine behind ``socket``; it contains its pid."""
    return socket.with_name(socket.name + ".start")


def starter(socket: Path) -> int | None:
    """The pid of the `slotdeck` that is starting an engine behind ``socket``. The engine may not hold its lock yet."""
    return _holder(start_lock(socket))


def _holder(path: Path) -> int | None:
    """The pid of the living process that holds the lock at ``path`` and wrote its pid into it."""
    try:
        with path.open() as lock:
            pid = int(lock.read() or 0)
            # The lock is only tried if its holder lives: a try must never get in the way of an engine that starts.
            if pid <= 0 or not lives(pid):
                return None
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return pid
    except (OSError, ValueError):
        pass
    return None


def coming(socket: Path) -> str | None:
    """A sentence if an engine exists behind ``socket`` although it does not answer yet, else ``None``."""
    if (pid := lock_holder(socket)) is not None:
        return f"the engine (pid {pid}) is still loading or stopping and does not answer; try again in a moment"
    if (pid := starter(socket)) is not None:
        return f"`slotdeck` (pid {pid}) is starting an engine, which does not answer yet; try again in a moment"
    return None


def absence(socket: Path) -> str:
    """A sentence that says why no engine answers behind ``socket``, and what to do."""
    return coming(socket) or f"no engine runs on {socket}; `slotdeck` starts one"


def _end_file(socket: Path) -> Path:
    return socket.with_name(socket.name + ".ended")


def record_end(socket: Path, pid: int, code: int) -> None:
    """Record that process ``pid`` ended with exit code ``code``, or by signal ``-code``."""
    try:
        _end_file(socket).write_text(f"{pid} {code}\n")
    except OSError:
        pass  # The console then says that the engine ended, but not how.


def exit_code(socket: Path, pid: int) -> int | None:
    """The code that :func:`record_end` recorded for ``pid``; ``None`` if there is none."""
    try:
        recorded, code = _end_file(socket).read_text().split()
        return int(code) if int(recorded) == pid else None
    except (OSError, ValueError):
        return None


def end_in_words(code: int | None) -> str:
    """A few words for an exit code; empty if the code is unknown."""
    if code is None:
        return ""
    if code == -signal.SIGKILL:
        return "signal 9, out of memory?"
    if code < 0:
        return f"signal {-code}"
    return {0: "it was stopped", STEP_WEDGED: "exit code 70, a step hung"}.get(code, f"exit code {code}")
