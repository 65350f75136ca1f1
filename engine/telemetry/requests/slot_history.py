"""Who got a slot and who gave one back, and when: answers why a request had to wait for its slot."""

from __future__ import annotations

from bisect import bisect_right

MAX_TIMES = 1000
"""Admissions and ends that are kept; a request that waited through more sees at least these."""


class _Times:
    """The last :data:`MAX_TIMES` times of one kind of event, or a few more; they must not go down."""

    def __init__(self) -> None:
        self._times: list[float] = []

    def append(self, time: float) -> None:
        self._times.append(time)
        if len(self._times) >= 2 * MAX_TIMES:
            del self._times[:MAX_TIMES]

    def count_after(self, time: float) -> int:
        return len(self._times) - bisect_right(self._times, time)


class SlotHistory:
    """Each method takes logarithmic time at most, since the engine calls them while it holds its lock.

    Times are monotonic seconds and must not go down from call to call.
    """

    def __init__(self) -> None:
        self._admissions, self._ends = _Times(), _Times()
        self._held = 0
        self._last_end: tuple[float, str] | None = None

    def on_admitted(self, time: float) -> None:
        """A request got a slot for the first time."""
        self._held += 1
        self._admissions.append(time)

    def on_ended(self, time: float, user: str) -> None:
        """A request of ``user`` that had a slot ended."""
        self._held -= 1
        self._ends.append(time)
        self._last_end = (time, user)

    def held_at(self, time: float) -> int:
        """Requests that held a slot at ``time``."""
        return max(0, self._held + self._ends.count_after(time) - self._admissions.count_after(time))

    def admitted_after(self, time: float) -> int:
        """Requests that got a slot after ``time``."""
        return self._admissions.count_after(time)

    def freed_by(self, time: float) -> str | None:
        """User of the request that ended last, if it ended after ``time``."""
        return self._last_end[1] if self._last_end is not None and self._last_end[0] > time else None
