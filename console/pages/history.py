"""The History page: the Live screen as it was at any recorded second, and the ways to get there."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from slotdeck.console.drawing import formats
from slotdeck.console.drawing.cells import Line, blank, clean, exact, wrap
from slotdeck.console.pages.live import live_body
from slotdeck.console.pages.page import Chrome, Page, framed
from slotdeck.console.sections.header import grid_lines, title_line
from slotdeck.console.sections.history_strip import ROWS as STRIP_ROWS
from slotdeck.console.sections.history_strip import timeline_lines
from slotdeck.console.sources.recording import write_frames
from slotdeck.console.state.store import Store, View
from slotdeck.engine.paths import history_path, state_folder
from slotdeck.engine.telemetry.frame import Frame, FrameEvent
from slotdeck.engine.telemetry.history.reader import LOUD, History, HistoryError
from slotdeck.engine.telemetry.history.schema import ChunkSummary

if TYPE_CHECKING:
    from slotdeck.console.app import ConsoleApp

SPANS = (600.0, 3600.0, 86_400.0)
"""Seconds that the strip may show."""
LOOK_BACK = 600.0
"""Seconds before the instant that plots and log show."""
LEAP = 60.0
EXPORTED = 600.0
"""Seconds around the instant that are written to a file."""
HOUR, DAY = 3600.0, 86_400.0
TALL = 22
"""Rows from which there is room for the strip."""
PLAY_SECONDS = 1.0


@dataclass(frozen=True)
class Then:
    """An instant and what is around it."""

    at: float
    """Where one stands: the instant of the frame, or of the event jumped to."""
    view: View
    note: str = ""
    """The event jumped to."""
    start: float = 0.0
    """Of the strip."""
    chunks: tuple[ChunkSummary, ...] = ()
    marks: tuple[FrameEvent, ...] = ()


@dataclass
class _Place:
    """A frame found, and where one stands with it."""

    frame: Frame
    at: float
    note: str = field(default="")


Find = Callable[[History, float], _Place | None]
"""What a key looks for, given where one stands."""
MAX_WANTED = 4
"""Keys that wait for the one before; a held key moves on at the pace of the disk and not longer than it is held."""


class HistoryPage(Page):
    """Reads in threads, one key after the other."""

    name = "history"

    then: Then | None = None
    problem = ""
    seconds = SPANS[1]
    playing = False

    def __init__(self, app: ConsoleApp) -> None:
        super().__init__(app)
        self._wanted: deque[tuple[Find, str]] = deque(maxlen=MAX_WANTED)
        self._reading = False
        self._history = History(history_path())

    def compose(self, view: View, chrome: Chrome, cells: int, rows: int) -> list[Line]:
        then = self.then
        if then is None:
            top = [title_line(view, cells), exact([(" HISTORY", "banner")], cells, "banner"), blank(cells)]
            rest = wrap(clean(self.problem or "reading …"), cells - 2, 4)
            return framed(top, lambda _: [exact([(f" {row}", "text")], cells) for row in rest], chrome, cells, rows)
        strip = STRIP_ROWS if rows >= TALL else 0
        top = [title_line(then.view, cells), *grid_lines(then.view, cells), self._banner(then, cells)]
        past = replace(chrome, paused_for=None, disconnected_for=None)

        def body(left: int) -> list[Line]:
            lines = live_body(then.view, past, cells, left - strip)
            return lines + (self._strip(then, cells) if strip else [])

        return framed(top, body, chrome, cells, rows)

    def _banner(self, then: Then, cells: int) -> Line:
        moment = time.strftime("%a %d %b %H:%M:%S", time.localtime(then.at))
        ago = formats.clock(max(0.0, time.time() - then.at))
        doing = "playing  " if self.playing else ""
        where = f" HISTORY  {moment}  {ago} ago  {doing}"
        return exact([(where, "banner"), (clean(then.note), "banner")], cells, "banner")

    def _strip(self, then: Then, cells: int) -> list[Line]:
        return timeline_lines(then.chunks, then.marks, start=then.start, seconds=self.seconds, at=then.at, cells=cells)

    # ------------------------------------------------------------------ opened and closed

    def opened(self, argument: str | int | None) -> None:
        """At first the newest recorded second; later where one left."""
        if self.then is None:
            self.action_end(1)

    def closed(self) -> None:
        """Nothing plays while nobody looks."""
        self.playing = False

    def back(self) -> bool:
        """Stop playing."""
        playing, self.playing = self.playing, False
        return playing

    # ------------------------------------------------------------------ keys

    def action_seek(self, direction: int) -> None:
        """One recorded second on or back."""
        self._step(direction)

    def action_leap(self, direction: int) -> None:
        """A minute on or back."""
        self._go(direction * LEAP)

    def action_move(self, direction: int) -> None:
        """Ten seconds on or back."""
        self._go(direction * 10.0)

    def action_page(self, direction: int) -> None:
        """An hour on or back."""
        self._go(direction * HOUR)

    def action_day(self, direction: int) -> None:
        """A day on or back."""
        self._go(direction * DAY)

    def action_end(self, direction: int) -> None:
        """The first or the newest recorded second."""

        def find(history: History, at: float) -> _Place | None:
            span = history.span()
            if span is None:
                return None
            frame = history.frame_at(span[1]) if direction > 0 else history.step(span[0] - 1, 1)
            return None if frame is None else _Place(frame, frame.time)

        self._look(find, "nothing is recorded yet; the first seconds are written after ten")

    def action_jump(self, direction: int) -> None:
        """The next or the last preemption, refusal, fault or change of a setting."""

        def find(history: History, at: float) -> _Place | None:
            event = history.jump(at, direction, LOUD)
            if event is None:
                return None
            frame = history.step(event.time - 0.001, 1) or history.frame_at(event.time)
            return None if frame is None else _Place(frame, event.time, event.text)

        self._look(find, f"nothing went wrong and nothing was turned {'after' if direction > 0 else 'before'} this")

    def action_span(self) -> None:
        """The strip shows ten minutes, an hour or a day."""
        self.seconds = SPANS[(SPANS.index(self.seconds) + 1) % len(SPANS)]
        self._look(lambda history, at: _known(history.frame_at(at), at), "nothing is recorded here")

    def action_export(self) -> None:
        """Write the ten minutes around this instant as a file that `slotdeck replay` shows."""
        if self.then is not None:
            self.app.run_worker(self._export(self.then.at), group="history-export", exit_on_error=False)

    async def _export(self, at: float) -> None:
        name = time.strftime("slotdeck-%Y%m%d-%H%M%S.ndjson.gz", time.localtime(at))
        path = state_folder() / "exports" / name
        try:
            count = await asyncio.to_thread(_write, path, at)
        except (HistoryError, OSError) as error:
            self.app.say(f"not exported: {error}", failed=True)
        else:
            self.app.say(f"{count} frames written to {path}")

    def action_pause(self) -> None:
        """Play from here at the pace of then, or stop."""
        self.playing = not self.playing
        if self.playing:
            self.app.run_worker(self._play(), group="history-play", exclusive=True, exit_on_error=False)

    async def _play(self) -> None:
        while self.playing:
            await asyncio.sleep(PLAY_SECONDS)
            if self.playing:
                self._step(1)

    # ------------------------------------------------------------------ reading

    def _step(self, direction: int) -> None:
        edge = "end" if direction > 0 else "begin"

        def find(history: History, at: float) -> _Place | None:
            frame = history.step(at, direction)
            return None if frame is None else _Place(frame, frame.time)

        self._look(find, f"this is the {edge} of what is recorded")

    def _go(self, seconds: float) -> None:
        """To the frame nearest to so much later; over a hole to its other side."""

        def find(history: History, at: float) -> _Place | None:
            frame = history.frame_at(at + seconds)
            if seconds > 0 and (frame is None or frame.time <= at):
                frame = history.step(at, 1)
            elif seconds < 0 and frame is None:
                frame = history.step(0.0, 1)
            if frame is None or frame.time == at:
                return None
            return _Place(frame, frame.time)

        self._look(find, f"this is the {'end' if seconds > 0 else 'begin'} of what is recorded")

    def _look(self, find: Find, otherwise: str) -> None:
        self._wanted.append((find, otherwise))
        if not self._reading:
            self._reading = True
            self.app.run_worker(self._read(), group="history", exit_on_error=False)

    async def _read(self) -> None:
        try:
            while self._wanted:
                find, otherwise = self._wanted.popleft()
                try:
                    then = await asyncio.to_thread(self._fetch, find)
                except HistoryError as error:
                    self._missed(str(error))
                else:
                    if then is None:
                        self._missed(otherwise)
                    else:
                        self.then = then
                self.redraw()
        finally:
            self._reading = False

    def _missed(self, why: str) -> None:
        self.playing = False
        self.problem = why
        if self.then is not None:
            self.app.say(why)

    def _fetch(self, find: Find) -> Then | None:
        """Everything that is shown, in a thread."""
        history = self._history
        place = find(history, self.then.at if self.then is not None else time.time())
        if place is None:
            return None
        start = _aligned(place.at, self.seconds)
        shown = self.then
        end = start + self.seconds
        if shown is not None and shown.start == start and end < place.frame.time - DAY:
            chunks, marks = shown.chunks, shown.marks  # nothing is added to what is long past
        else:
            chunks = tuple(history.chunks(start, end))
            marks = tuple(history.events(start, end, LOUD, last=5000))
        return Then(place.at, _view(history, place.frame), place.note, start, chunks, marks)


def _view(history: History, frame: Frame) -> View:
    """What a console that had watched for ten minutes would have shown at that frame."""
    store, first = Store(), None
    for earlier in history.frames(frame.time - LOOK_BACK, frame.time):
        first = first or earlier
        store.apply(earlier)
    begun = first.time if first is not None else 0.0
    # The store logs the engine's notes with its first frame, which here is no moment of interest.
    events = tuple(event for event in store.view.events if event.kind != "note" or event.time != begun)
    return replace(store.view, events=events)


def _write(path: Path, at: float) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_frames(path, History(history_path()).frames(at - EXPORTED / 2, at + EXPORTED / 2))


def _known(frame: Frame | None, at: float) -> _Place | None:
    return None if frame is None else _Place(frame, at)


def _aligned(at: float, seconds: float) -> float:
    """The begin of the span that holds ``at``, at round local times, so that the strip stands still under steps."""
    offset = time.localtime(at).tm_gmtoff
    return (at + offset) // seconds * seconds - offset
