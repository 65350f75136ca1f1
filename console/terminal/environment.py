"""What the terminal allows: whether a console can run, which characters it can draw, where stderr goes, job control."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slotdeck.engine.paths import state_folder

ASCII_VARIABLE = "SLOTDECK_ASCII"
MAX_LOG = 1 << 20


def terminal_problem() -> str | None:
    """One sentence that says why no console can be shown here; ``None`` if one can."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return "the console needs a terminal on standard input and output"
    if os.environ.get("TERM", "") in ("", "dumb"):
        return "the console needs a terminal that can move its cursor; TERM says it cannot"
    return None


def ascii_wanted() -> bool:
    """True if only ASCII may be drawn: because of ``SLOTDECK_ASCII=1``, or of a locale that is not UTF-8."""
    asked = os.environ.get(ASCII_VARIABLE)
    if asked:
        return asked not in ("0", "no", "false")
    locale = next((os.environ[name] for name in ("LC_ALL", "LC_CTYPE", "LANG") if os.environ.get(name)), "")
    # Under LANG=C Python puts LC_CTYPE=C.UTF-8 into its own environment; what the user asked for is LANG.
    if locale in ("C", "POSIX") or (locale == "C.UTF-8" and os.environ.get("LANG") in ("C", "POSIX")):
        return True
    encoding = _stdout_encoding().lower().replace("-", "").replace("_", "")
    codeset = locale.partition(".")[2].partition("@")[0].lower().replace("-", "")
    return encoding != "utf8" or codeset not in ("", "utf8")


def _stdout_encoding() -> str:
    return sys.stdout.encoding or ""


def console_log() -> Path:
    """The file that gets everything written to stderr while the screen is shown."""
    return state_folder() / "console.log"


@contextmanager
def own_screen(ascii_only: bool) -> Iterator[None]:
    """Give the screen a file of its own on the terminal and send file descriptor 2 to :func:`console_log`.

    Textual draws through ``sys.__stderr__``; whatever else a library or C code writes to stderr would land in the
    middle of the screen.
    """
    log = console_log()
    log.parent.mkdir(parents=True, exist_ok=True)
    too_large = log.exists() and log.stat().st_size > MAX_LOG
    log_descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if too_large else os.O_APPEND), 0o600)
    sys.stderr.flush()
    sys.stdout.flush()
    kept = os.dup(2)
    screen = os.fdopen(os.dup(1), "w", encoding="ascii" if ascii_only else "utf-8", errors="replace", newline="")
    original = sys.__stderr__
    os.dup2(log_descriptor, 2)
    sys.__stderr__ = screen  # type: ignore[misc]
    try:
        yield
    finally:
        sys.__stderr__ = original  # type: ignore[misc]
        sys.stderr.flush()
        os.dup2(kept, 2)
        for descriptor in (kept, log_descriptor):
            os.close(descriptor)
        screen.close()


def can_resume() -> bool:
    """True if a shell with job control is above this process group, so that a stopped console can be resumed.

    Without one (started directly by tmux or ssh) a stop would be for ever.
    """
    import psutil

    group, session = os.getpgrp(), os.getsid(0)
    process = os.getpid()
    while process > 1:
        try:
            parent = psutil.Process(process).ppid()
            parent_group, parent_session = os.getpgid(parent), os.getsid(parent)
        except (psutil.Error, OSError):
            return False
        if parent_session != session:
            return False
        if parent_group != group:
            return True
        process = parent
    return False
