"""Notices a turn of the loop that does not end. Nothing can end it from outside, but everybody can be told."""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from collections.abc import Callable

from slotdeck.engine.loop.state import LoopState

log = logging.getLogger("slotdeck.engine")


class Watchdog:
    """Watches the turns of a loop in a thread of its own until the loop is told to stop."""

    def __init__(self, state: LoopState) -> None:
        self._state = state

    def watch(self, on_wedged: Callable[[str], None]) -> None:
        """Start watching. When a turn makes no progress in time, log all stacks and call ``on_wedged`` once."""
        threading.Thread(target=self._run, args=(on_wedged,), name="engine-watchdog", daemon=True).start()

    def _run(self, on_wedged: Callable[[str], None]) -> None:
        while not self._state.stopping.wait(timeout=min(1.0, self._state.step_timeout / 4)):
            if (reason := self._state.wedged()) is not None:
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
