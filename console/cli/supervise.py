"""Keeps the terminal usable whatever happens to the console.

:func:`supervise` runs the console in a forked child and waits for it. If a signal or an exception ends the child, the
parent, which draws nothing itself, restores the terminal and says what happened.
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
    """Restore the terminal on stdout: escape modes off, line settings ``modes`` restored, unread input dropped."""
    try:
        os.write(1, RESET.encode())
        if modes is not None:
            # Flushing drops unread mouse and focus reports, which the shell would take for typed text.
            termios.tcsetattr(0, termios.TCSAFLUSH, modes)
    except (OSError, termios.error):
        pass  # The terminal is gone, so there is nothing to restore.


def supervise(console: Callable[[], int], on_other_end: Callable[[int, int], None] = lambda _pid, _code: None) -> int:
    """Run ``console`` in a child process and return its exit code.

    ``on_other_end(pid, code)`` is called if another child of this process, a hosted engine, ends meanwhile; the code is
    negative for a signal.

    SIGTERM, SIGHUP and SIGTSTP are forwarded to the child. If the child stops itself (ctrl+z), this process stops too,
    so that the shell sees a stopped job. If a signal ends the child, the terminal is restored, the signal is named, and
    the result is 1. If this process dies, the child restores the terminal and ends.
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
    say(f"{signal.Signals(os.WTERMSIG(status)).name} ended the console; the engine goes on serving")
    return FAILED


def _line_settings() -> list[Any] | None:
    try:
        return termios.tcgetattr(0)
    except termios.error:
        return None


def _run_child(console: Callable[[], int], alive: int, modes: list[Any] | None) -> None:
    """Run the console in the child; never returns."""

    def watch_parent() -> None:
        # If this thread received a signal, the main thread, which runs the handlers, would not wake up.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        os.read(alive, 1)  # Returns only when the parent is gone, because the parent never writes.
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
    """Wait for the child and return its status. Other children that end meanwhile, such as the engine, are reaped."""
    while True:
        ended, status = os.waitpid(-1, os.WUNTRACED)
        if ended != child:
            if not os.WIFSTOPPED(status):
                on_other_end(ended, os.waitstatus_to_exitcode(status))
            continue
        if not os.WIFSTOPPED(status):
            return status
        # Stop the whole group, as the terminal would: after `make run` the shell waits for `make`.
        os.killpg(0, signal.SIGSTOP)
        # `fg` continues the whole group, but a SIGCONT for this process alone must be passed on to the child. A
        # second SIGCONT would start the screen twice.
        continued, _ = os.waitpid(child, os.WNOHANG | os.WCONTINUED)
        if continued == 0:
            os.kill(child, signal.SIGCONT)
