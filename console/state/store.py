"""From frames to the view that pages draw. Nothing else in the console keeps the state of the engine.

The store always follows the source; while the console is paused, the screen keeps an old :class:`View`. A view is
immutable, so it can be kept, compared and drawn at any time.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from slotdeck.console.sources.base import Disconnected, EngineEnd, Past, Update
from slotdeck.console.state.comparison import Comparer, Comparison, describe
from slotdeck.console.state.time_series import TimeSeries, TimeSeriesBuilder
from slotdeck.engine.telemetry.frame import CounterInfo, Frame, LimitInfo

MAX_EVENTS = 500
"""Events that are kept for the log."""

RECENT = 60.0
"""Seconds for which a counter counts as recently increased."""


_NO_SERIES = TimeSeries()


@dataclass(frozen=True)
class LogEntry:
    """One entry of the event log. ``text`` is as it came; whoever draws it cleans it."""

    time: float
    """Wall clock, seconds since the epoch."""
    kind: str
    text: str


@dataclass(frozen=True)
class View:
    """What is known at one instant."""

    frame: Frame | None = None
    """The newest frame; ``None`` before the first one."""
    disconnected: str | None = None
    """Why no frames come now; ``None`` while they do."""
    disconnected_at: float | None = None
    """Monotonic seconds at which the frames stopped."""
    ended: bool = False
    """The source will never give another frame."""
    end: EngineEnd | None = None
    """How the engine process ended; ``None`` while it runs or if that is unknown."""
    events: tuple[LogEntry, ...] = ()
    """Oldest first."""
    kv_swap_rate: float | None = None
    """Bytes per second moved by KV swap, in both directions together."""
    comparison: Comparison | None = None
    """The minutes before and after the newest change of settings."""
    series: TimeSeries = _NO_SERIES
    """The last ten minutes, one sample a second."""
    recently_increased: frozenset[str] = frozenset()
    """Names of the counters that this console saw rise in the last minute."""

    def without_connection(self, newest: View) -> View:
        """This view with what ``newest`` knows about the lost connection. Used for the view of a paused console."""
        return replace(
            self,
            disconnected=newest.disconnected,
            disconnected_at=newest.disconnected_at,
            ended=newest.ended,
            end=newest.end,
        )

    @property
    def limits(self) -> LimitInfo:
        """The settings in force; all are unknown before the first frame."""
        return self.frame.limits if self.frame else LimitInfo()

    @property
    def occupied(self) -> int | None:
        """Number of slots that hold a request, including preempted ones."""
        if self.frame is None:
            return None
        if self.frame.slots:
            return sum(slot.state != "idle" for slot in self.frame.slots)
        return self.frame.running

    @property
    def in_flight(self) -> int:
        """Requests that run or wait now; 0 if that is unknown."""
        if self.frame is None or self.disconnected is not None:
            return 0
        return (self.occupied or 0) + (self.frame.waiting_count or 0)


class Store:
    """Applies updates one after another. ``version`` rises whenever :attr:`view` is replaced."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._events: deque[LogEntry] = deque(maxlen=MAX_EVENTS)
        self._samples: deque[tuple[float, CounterInfo]] = deque()
        self._series = TimeSeriesBuilder()
        self._comparer = Comparer()
        self.version = 0
        self.view = View()

    def apply(self, update: Update) -> None:
        """Take a frame, frames from the past, or a disconnection."""
        if isinstance(update, Past):
            self._fill(update)
            return
        if isinstance(update, Disconnected):
            since = self.view.disconnected_at
            if update.end is not None and self.view.end is None and self.view.frame is not None:
                self._log(self.view.frame.time, "engine_fault", "the engine has ended")
            self._show(
                replace(
                    self.view,
                    disconnected=update.reason,
                    disconnected_at=self._clock() if since is None else since,
                    ended=update.final,
                    end=update.end,
                    events=self._kept_events(),
                )
            )
            return
        before = self.view.frame
        if before is None or before.boot_id != update.boot_id:
            self._samples.clear()
            self._series.restart()
            self._comparer.restart()
            if before is not None:
                self._log(update.time, "restarted", "the engine was restarted")
            for note in update.engine.notes:
                self._log(update.time, "note", note)
        for event in update.events:
            self._log(event.time, event.kind, event.text)
        self._sample(update)
        self._series.add(update)
        self._comparer.add(update)
        if (finished := self._comparer.finished) is not None:
            self._log(update.time, "compared", describe(finished))
        self._show(
            View(
                frame=update,
                events=tuple(self._events) if update.events or before is None else self._kept_events(),
                kv_swap_rate=self._swap_rate(),
                comparison=self._comparer.comparison,
                series=self._series.series,
                recently_increased=self._recently_increased(update.counters),
            )
        )

    def _fill(self, past: Past) -> None:
        """Add the events and samples that this console did not see itself."""
        newest = self.view.frame
        if newest is None:
            return
        # What is newer than the newest frame comes with the next frames; taking it here too would log it twice.
        frames = [f for f in past.frames if f.boot_id == newest.boot_id and f.time <= newest.time]
        self._series.fill(frames)
        known = set(self._events)
        missed = [LogEntry(event.time, event.kind, event.text) for frame in frames for event in frame.events]
        missed = [entry for entry in missed if entry not in known]
        if missed:
            entries = sorted([*self._events, *missed], key=lambda entry: entry.time)
            self._events = deque(entries, maxlen=MAX_EVENTS)
        self._show(replace(self.view, series=self._series.series, events=tuple(self._events)))

    def _show(self, view: View) -> None:
        if view != self.view:
            self.view = view
            self.version += 1

    def _kept_events(self) -> tuple[LogEntry, ...]:
        """The previous tuple if nothing was logged since, so that views share it."""
        kept = self.view.events
        newest = self._events[-1] if self._events else None
        return kept if kept and kept[-1] is newest else tuple(self._events)

    def _log(self, at: float, kind: str, text: str) -> None:
        self._events.append(LogEntry(at, kind, text))

    def _sample(self, frame: Frame) -> None:
        """Keep one sample of the counters a second, for a little more than a minute."""
        if not self._samples or frame.time - self._samples[-1][0] >= 1 or frame.time < self._samples[-1][0]:
            self._samples.append((frame.time, frame.counters))
        while len(self._samples) > 1 and frame.time - self._samples[0][0] > RECENT:
            self._samples.popleft()

    def _recently_increased(self, counters: CounterInfo) -> frozenset[str]:
        oldest = self._samples[0][1]
        return frozenset(
            name
            for name in ("rejected", "cancelled", "failed", "invalid", "preemptions")
            if (getattr(counters, name) or 0) > (getattr(oldest, name) or 0)
        )

    def _swap_rate(self) -> float | None:
        """Average over the last few seconds. With a single sample it is unknown, or 0 if nothing was ever moved."""
        newest_time, newest = self._samples[-1]
        if newest.kv_swap_bytes is None:
            return None
        base_time, base = self._samples[max(0, len(self._samples) - 4)]
        moved = newest.kv_swap_bytes - (base.kv_swap_bytes or 0)
        if newest_time <= base_time:
            return 0.0 if newest.kv_swap_bytes == 0 else None
        return max(0.0, moved / (newest_time - base_time))
