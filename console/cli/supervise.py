"""The terminal outlives whatever happens to the console.

:func:`supervise` runs the console in a forked child and waits. The parent holds no screen, so when the child dies
by a signal or an exception it can put the terminal right and say what happened.
"""

from __future__ import annotations

import os
import signal
import sys
import termios
import threading
import traceback
from collections.abc import Callable
from typing import Any

from slotdeck.console.cli.exits import FAILED, say

# Keyboard protocol, mouse modes, paste, resize and focus reports off; line wrap on, synchronised output off;
# then leave the alternate screen, show the cursor, plain text.
RESET = (
    "\x1b[<u\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?1015l\x1b[?1016l"
    "\x1b[?2004l\x1b[?2048l\x1b[?1004l\x1b[?7h\x1b[?2026l\x1b[?1049l\x1b[?25h\x1b[0m"
)


def reset_terminal(modes: list[Any] | None) -> None:
    """Put the terminal on stdout right: escape modes off, line settings ``modes`` back, unread input dropped."""
    try:
        os.write(1, RESET.encode())
        if modes is not None:
            # Flushing drops mouse and focus reports that nobody read, which the shell would take for typing.
            termios.tcsetattr(0, termios.TCSAFLUSH, modes)
    except (OSError, termios.error):
        pass  # The terminal is gone; there is nothing to put right.


def supervise(console: Callable[[], int], on_other_end: Callable[[int, int], None] = lambda _pid, _code: None) -> int:
    """Run ``console`` in a child process and return its exit code.

    ``on_other_end(pid, code)`` is told when another child of this process, a hosted engine, ends meanwhile; the code
    is negative for a signal.

    SIGTERM, SIGHUP and SIGTSTP go on to the child; a child that stops itself (ctrl+z) stops this process too, so
    that the shell sees a stopped job. If the child dies by a signal, the terminal is reset, the signal is named, and
    the result is 1. If this process dies, the child resets the terminal and ends.
    """
    modes = _line_settings()
    alive_read, alive_write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(alive_write)
        _run_child(console, alive_read, modes)
    os.close(alive_read)

    def forward(number: int, _frame: object) -> None:
        try:
            os.kill(child, number)
        except ProcessLookupError:
            pass

    replaced = {number: signal.signal(number, forward) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP)}
    replaced |= {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGQUIT)}
    try:
        status = _wait(child, on_other_end)
    finally:
        for number, handler in replaced.items():
            signal.signal(number, handler)
        os.close(alive_write)
    if not os.WIFSIGNALED(status):
        return os.WEXITSTATUS(status)
    reset_terminal(modes)
    say(f"the console was ended by {signal.Signals(os.WTERMSIG(status)).name}; served requests go on")
    return FAILED


def _line_settings() -> list[Any] | None:
    try:
        return termios.tcgetattr(0)
    except termios.error:
        return None


def _run_child(console: Callable[[], int], alive: int, modes: list[Any] | None) -> None:
    """The child's whole life; never returns."""

    def watch_parent() -> None:
        # A signal that this thread took would not wake the main thread, where handlers run.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        os.read(alive, 1)  # Returns only when the parent is gone: it never writes.
        reset_terminal(modes)
        os._exit(FAILED)

    threading.Thread(target=watch_parent, name="parent-watch", daemon=True).start()
    try:
        code = console()
    except BaseException as error:
        reset_terminal(modes)
        if not isinstance(error, KeyboardInterrupt):
            traceback.print_exc()
        code = FAILED
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _wait(child: int, on_other_end: Callable[[int, int], None]) -> int:
    """The child's wait status. Reaps this process's other children (a hosted engine that ended) on the way."""
    while True:
        ended, status = os.waitpid(-1, os.WUNTRACED)
        if ended != child:
            if not os.WIFSTOPPED(status):
                on_other_end(ended, os.waitstatus_to_exitcode(status))
            continue
        if not os.WIFSTOPPED(status):
            return status
        # The whole group, as the terminal itself would: a shell waits for `make`, not for us, after `make run`.
        os.killpg(0, signal.SIGSTOP)
        # `fg` continues the whole group, but a SIGCONT sent to this process alone must reach the child too; a
        # second one would start the screen twice.
        continued, _ = os.waitpid(child, os.WNOHANG | os.WCONTINUED)
        if continued == 0:
            os.kill(child, signal.SIGCONT)
