"""An instant of the recorded past: the view that the console would have shown then, and the strip around it."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from slotdeck.console.sources.history import RecordedHistory
from slotdeck.console.state.store import Store, View
from slotdeck.engine.telemetry.frame import Frame, FrameEvent
from slotdeck.engine.telemetry.history.reader import LOUD
from slotdeck.engine.telemetry.history.schema import ChunkSummary

LOOK_BACK = 600.0
"""Seconds before the instant that plots and event log show."""
MAX_EVENTS = 5000
"""Events on the strip."""
DAY = 86_400.0


@dataclass(frozen=True)
class Position:
    """A frame that was found, and the instant to show."""

    frame: Frame
    time: float
    """The instant of the frame, or of the event that was jumped to."""
    note: str = ""
    """The event that was jumped to."""


@dataclass(frozen=True)
class HistoryView:
    """An instant and what is around it."""

    time: float
    view: View
    note: str = ""
    """The event that was jumped to."""
    start: float = 0.0
    """Beginning of the strip."""
    chunks: tuple[ChunkSummary, ...] = ()
    """How busy the engine was during the strip."""
    marks: tuple[FrameEvent, ...] = ()
    """Events during the strip."""


def read_view(history: RecordedHistory, position: Position, seconds: float, before: HistoryView | None) -> HistoryView:
    """Read everything that is shown at a position, with a strip of ``seconds``. Raises HistoryError.

    ``before`` is what was shown last. Its strip is used again if it is long past, because nothing is added to it.
    """
    start = _aligned(position.time, seconds)
    end = start + seconds
    if before is not None and before.start == start and end < position.frame.time - DAY:
        chunks, marks = before.chunks, before.marks
    else:
        chunks = tuple(history.chunks(start, end))
        marks = tuple(history.events(start, end, LOUD, last=MAX_EVENTS))
    return HistoryView(position.time, _view(history, position.frame), position.note, start, chunks, marks)


def _view(history: RecordedHistory, frame: Frame) -> View:
    """What a console that had watched for ten minutes would have shown at that frame."""
    store, first = Store(), None
    for earlier in history.frames(frame.time - LOOK_BACK, frame.time):
        first = first or earlier
        store.apply(earlier)
    begun = first.time if first is not None else 0.0
    # The store logs the engine's notes with its first frame, which here is an arbitrary moment.
    events = tuple(event for event in store.view.events if event.kind != "note" or event.time != begun)
    return replace(store.view, events=events)


def _aligned(at: float, seconds: float) -> float:
    """The beginning of the span that holds ``at``. Spans begin at round local times, so that steps do not move them."""
    offset = time.localtime(at).tm_gmtoff
    return (at + offset) // seconds * seconds - offset
