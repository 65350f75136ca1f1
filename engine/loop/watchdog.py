"""Notices a step that does not return. Nothing can end it from outside, but everybody can be told."""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from collections.abc import Callable

log = logging.getLogger("slotdeck.engine")


class Watchdog:
    """Asks ``step_started`` (monotonic seconds, or ``None`` between steps) until ``stopping`` is set."""

    def __init__(
        self, step_started: Callable[[], float | None], clock: Callable[[], float], stopping: threading.Event
    ) -> None:
        self._step_started, self._clock, self._stopping = step_started, clock, stopping

    def watch(self, timeout: float, on_wedged: Callable[[str], None]) -> None:
        """Start watching in a thread: a step longer than ``timeout`` seconds logs all stacks and is told once."""
        threading.Thread(target=self._run, args=(timeout, on_wedged), name="engine-watchdog", daemon=True).start()

    def _run(self, timeout: float, on_wedged: Callable[[str], None]) -> None:
        while not self._stopping.wait(timeout=min(1.0, timeout / 4)):
            started = self._step_started()
            if started is not None and self._clock() - started > timeout:
                reason = f"a step has not returned for {timeout:.0f} s"
                # Through the log, which never waits for its reader; faulthandler would write to stderr itself.
                log.critical("%s; stacks of all threads follow\n%s", reason, _stacks())
                on_wedged(reason)
                return


def _stacks() -> str:
    """Where each thread is, the innermost call last."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "".join(
        f"thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
    )
