"""Notices a step that does not return. Nothing can end it from outside, but everybody can be told."""

from __future__ import annotations

import faulthandler
import logging
import sys
import threading
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
                log.critical("%s; stacks of all threads follow", reason)
                faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
                on_wedged(reason)
                return
