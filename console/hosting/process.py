"""The engine's process as seen from beside its socket: does it live, who holds the lock, how did it end.

The engine writes its pid into a lock file beside its admin socket before it loads anything. The launcher that started
it learns how it ended and leaves that in a file of its own, for every console that watched.
"""

from __future__ import annotations

import fcntl
import os
import signal
from pathlib import Path

STEP_WEDGED = 70
"""Exit code of an engine whose step did not return."""


def lives(pid: int) -> bool:
    """True while the process runs; one that ended and was not yet waited for does not."""
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
    """The process that holds the engine's lock beside ``socket``, from before it serves until it has ended."""
    return _holder(socket.with_name(socket.name + ".lock"))


def start_lock(socket: Path) -> Path:
    """The lock that a `slotdeck` holds while it starts an engine behind ``socket``, with its pid."""
    return socket.with_name(socket.name + ".start")


def starter(socket: Path) -> int | None:
    """The `slotdeck` that is starting an engine behind ``socket``: the engine itself may not hold its lock yet."""
    return _holder(start_lock(socket))


def _holder(path: Path) -> int | None:
    """The living process that holds the lock at ``path`` and wrote its pid into it."""
    try:
        with path.open() as lock:
            pid = int(lock.read() or 0)
            # Only behind a living holder is the lock tried: a try must never be in the way of an engine that starts.
            if pid <= 0 or not lives(pid):
                return None
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return pid
    except (OSError, ValueError):
        pass
    return None


def coming(socket: Path) -> str | None:
    """Why an engine that does not answer behind ``socket`` is there all the same; ``None`` if none is."""
    if (pid := lock_holder(socket)) is not None:
        return f"the engine, pid {pid}, is still loading (or stopping) and does not answer yet; try again in a moment"
    if (pid := starter(socket)) is not None:
        return f"an engine is being started by `slotdeck`, pid {pid}, and does not answer yet; try again in a moment"
    return None


def absence(socket: Path) -> str:
    """Why nobody answers behind ``socket``, as a sentence that says what to do."""
    return coming(socket) or f"no engine runs on {socket}; `slotdeck` starts one"


def _end_file(socket: Path) -> Path:
    return socket.with_name(socket.name + ".ended")


def record_end(socket: Path, pid: int, code: int) -> None:
    """Leave word that process ``pid`` ended with exit code ``code``, or by signal ``-code``."""
    try:
        _end_file(socket).write_text(f"{pid} {code}\n")
    except OSError:
        pass  # The console then says that it ended, and not how.


def exit_code(socket: Path, pid: int) -> int | None:
    """What :func:`record_end` left about ``pid``."""
    try:
        recorded, code = _end_file(socket).read_text().split()
        return int(code) if int(recorded) == pid else None
    except (OSError, ValueError):
        return None


def end_in_words(code: int | None) -> str:
    """A few words for an exit code; empty if it is unknown."""
    if code is None:
        return ""
    if code == -signal.SIGKILL:
        return "signal 9, out of memory?"
    if code < 0:
        return f"signal {-code}"
    return {0: "it was stopped", STEP_WEDGED: "exit code 70, a step hung"}.get(code, f"exit code {code}")
