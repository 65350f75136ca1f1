"""Changes of settings on their way to the loop: each has one outcome, and its caller always learns which."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from typing import Any

from slotdeck.engine.settings import SettingsError
from slotdeck.engine.telemetry.frame import LimitInfo

STOPPED = "the engine has stopped, so nothing can be changed"


@dataclass(eq=False, slots=True)
class PendingChange:
    """A change that was asked for. It is applied, refused or withdrawn: whichever comes first, and never two of them.

    The future holds the outcome. Cancelling it withdraws the change, which works until the moment it is applied.
    """

    changes: dict[str, Any]
    revision: int | None
    """The revision that the change was decided on; ``None``: any."""
    source: str
    outcome: Future[LimitInfo] = field(default_factory=Future)

    def withdraw(self) -> bool:
        """Give the change up; ``False`` if it has its outcome already, or is being given it."""
        return self.outcome.cancel()

    @property
    def withdrawn(self) -> bool:
        return self.outcome.cancelled()

    def claim(self) -> bool:
        """Called right before the change is applied; ``False`` if it was withdrawn. Then it cannot be any more."""
        return self.outcome.set_running_or_notify_cancel()

    def refuse(self, error: BaseException) -> None:
        """Nothing was changed, because of ``error``. A change that has its outcome keeps it."""
        if not self.outcome.done() and self.claim():
            self.outcome.set_exception(error)

    def wait(self, timeout: float) -> LimitInfo:
        """The settings in force after the change, once it is applied.

        Raises what it was refused with. After ``timeout`` seconds it is withdrawn, and SettingsError says so.
        """
        try:
            return self.outcome.result(timeout)
        except CancelledError:
            raise SettingsError("this change was withdrawn: nothing was changed") from None
        except TimeoutError:
            if not self.withdraw():
                return self.outcome.result()  # it was applied in this very moment
            raise SettingsError(
                f"the engine did not apply this change within {timeout:.0f} s: it was withdrawn, nothing was changed"
            ) from None


class ChangeQueue:
    """Changes that wait for the loop, first come first. Any thread may call any method."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[PendingChange] = deque()
        self._closed = False

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def put(self, change: PendingChange) -> None:
        with self._lock:
            if not self._closed:
                self._waiting.append(change)
                return
        change.refuse(SettingsError(STOPPED))

    def get(self) -> PendingChange | None:
        """The next change that was not withdrawn."""
        with self._lock:
            while self._waiting:
                change = self._waiting.popleft()
                if not change.withdrawn:
                    return change
            return None

    def close(self) -> None:
        """The loop has ended: refuse what waits, and whatever comes later."""
        with self._lock:
            waiting, self._waiting, self._closed = list(self._waiting), deque(), True
        for change in waiting:
            change.refuse(SettingsError(STOPPED))
