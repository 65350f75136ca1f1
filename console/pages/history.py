"""The History page: the Live screen as it was at any recorded second, and the keys that lead there."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from slotdeck.console.drawing import formats
from slotdeck.console.drawing.cells import Line, blank, clean, exact, wrap
from slotdeck.console.keys.actions import Command
from slotdeck.console.pages.context import PageContext
from slotdeck.console.pages.layout import Chrome, framed
from slotdeck.console.pages.live import live_body
from slotdeck.console.pages.page import Page
from slotdeck.console.sections.header import grid_lines, title_line
from slotdeck.console.sections.history_strip import ROWS as STRIP_ROWS
from slotdeck.console.sections.history_strip import strip_lines
from slotdeck.console.sources.history import RecordedHistory
from slotdeck.console.sources.recording import write_frames
from slotdeck.console.state.history_view import DAY, HistoryView, Position, read_view
from slotdeck.console.state.store import View
from slotdeck.engine.paths import state_folder
from slotdeck.engine.telemetry.frame import Frame
from slotdeck.engine.telemetry.history.reader import LOUD, HistoryError

SPANS = (600.0, 3600.0, 86_400.0)
"""Seconds that the strip may show."""
TEN_SECONDS, MINUTE, HOUR = 10.0, 60.0, 3600.0
EXPORTED = 600.0
"""Seconds around the instant that are written to a file."""
MIN_STRIP_HEIGHT = 22
"""Rows of the terminal from which there is room for the strip."""
PLAY_SECONDS = 1.0
MAX_WAITING = 4
"""Keys that wait for the one before. A held key moves at the pace of the disk and stops when it is released."""

Find = Callable[[RecordedHistory, float], Position | None]
"""What a key looks for, given the instant that is shown."""


class HistoryPage(Page):
    """Reads in threads, one key after the other."""

    name = "history"

    def __init__(self, context: PageContext) -> None:
        super().__init__(context)
        self.shown: HistoryView | None = None
        self.problem = ""
        """Why nothing could be read."""
        self.seconds = SPANS[1]
        """Length of the strip."""
        self.playing = False
        self._history = context.session.open_history()
        self._waiting: deque[tuple[Find, str]] = deque(maxlen=MAX_WAITING)
        self._reading = False
        self.handlers = {
            Command.SEEK: self.step,
            Command.LEAP: lambda direction: self.go(direction * MINUTE),
            Command.MOVE: lambda direction: self.go(direction * TEN_SECONDS),
            Command.PAGE: lambda direction: self.go(direction * HOUR),
            Command.DAY: lambda direction: self.go(direction * DAY),
            Command.END: self.end,
            Command.JUMP: self.jump,
            Command.SPAN: self.next_span,
            Command.EXPORT: self.export,
            Command.PAUSE: self.toggle_play,
        }

    def compose(self, view: View, chrome: Chrome, width: int, height: int) -> list[Line]:
        shown = self.shown
        if shown is None:
            top = [title_line(view, width), exact([(" HISTORY", "banner")], width, "banner"), blank(width)]
            rest = wrap(clean(self.problem or "reading …"), width - 2, 4)
            return framed(top, lambda _: [exact([(f" {row}", "text")], width) for row in rest], chrome, width, height)
        strip = STRIP_ROWS if height >= MIN_STRIP_HEIGHT else 0
        top = [title_line(shown.view, width), *grid_lines(shown.view, width), self._banner(shown, width)]
        past = replace(chrome, paused_for=None, disconnected_for=None)

        def body(room: int) -> list[Line]:
            lines = live_body(shown.view, past, width, room - strip)
            return lines + (self._strip(shown, width) if strip else [])

        return framed(top, body, chrome, width, height)

    def _banner(self, shown: HistoryView, width: int) -> Line:
        moment = time.strftime("%a %d %b %H:%M:%S", time.localtime(shown.time))
        ago = formats.clock(max(0.0, time.time() - shown.time))
        doing = "playing  " if self.playing else ""
        where = f" HISTORY  {moment}  {ago} ago  {doing}"
        return exact([(where, "banner"), (clean(shown.note), "banner")], width, "banner")

    def _strip(self, shown: HistoryView, width: int) -> list[Line]:
        return strip_lines(
            shown.chunks, shown.marks, start=shown.start, seconds=self.seconds, at=shown.time, width=width
        )

    # ------------------------------------------------------------------ opened and closed

    def opened(self, argument: str | None) -> None:
        """The first time show the newest recorded second, later what was shown before."""
        if self.shown is None:
            self.end(1)

    def closed(self) -> None:
        """Stop playing."""
        self.playing = False

    def back(self) -> bool:
        """Stop playing."""
        playing, self.playing = self.playing, False
        return playing

    # ------------------------------------------------------------------ commands

    def step(self, direction: int) -> None:
        """Show the next recorded second, or the one before."""

        def find(history: RecordedHistory, at: float) -> Position | None:
            frame = history.step(at, direction)
            return None if frame is None else Position(frame, frame.time)

        self._look(find, f"this is the {'end' if direction > 0 else 'beginning'} of the recording")

    def go(self, seconds: float) -> None:
        """Show the frame nearest to so much later. A gap in the recording is skipped."""

        def find(history: RecordedHistory, at: float) -> Position | None:
            frame = history.frame_at(at + seconds)
            if seconds > 0 and (frame is None or frame.time <= at):
                frame = history.step(at, 1)
            elif seconds < 0 and frame is None:
                frame = history.step(0.0, 1)
            if frame is None or frame.time == at:
                return None
            return Position(frame, frame.time)

        self._look(find, f"this is the {'end' if seconds > 0 else 'beginning'} of the recording")

    def end(self, direction: int) -> None:
        """Show the first or the newest recorded second."""

        def find(history: RecordedHistory, at: float) -> Position | None:
            span = history.span()
            if span is None:
                return None
            frame = history.frame_at(span[1]) if direction > 0 else history.step(span[0] - 1, 1)
            return None if frame is None else Position(frame, frame.time)

        self._look(find, "nothing is recorded yet; the first seconds are written after ten")

    def jump(self, direction: int) -> None:
        """Show the next or the previous preemption, refusal, fault or change of a setting."""

        def find(history: RecordedHistory, at: float) -> Position | None:
            event = history.jump(at, direction, LOUD)
            if event is None:
                return None
            frame = history.step(event.time - 0.001, 1) or history.frame_at(event.time)
            return None if frame is None else Position(frame, event.time, event.text)

        self._look(find, f"no such event is recorded {'after' if direction > 0 else 'before'} this")

    def next_span(self) -> None:
        """Show ten minutes, an hour or a day on the strip, in turn."""
        self.seconds = SPANS[(SPANS.index(self.seconds) + 1) % len(SPANS)]
        self._look(lambda history, at: _at(history.frame_at(at), at), "nothing is recorded here")

    def export(self) -> None:
        """Write the ten minutes around this instant to a file that `slotdeck replay` shows."""
        if self.shown is not None:
            self.context.run(self._export(self.shown.time), "history-export")

    async def _export(self, at: float) -> None:
        name = time.strftime("slotdeck-%Y%m%d-%H%M%S.ndjson.gz", time.localtime(at))
        path = state_folder() / "exports" / name
        try:
            count = await asyncio.to_thread(_write, self.context.session.open_history(), path, at)
        except (HistoryError, OSError) as error:
            self.context.say(f"not exported: {error}", failed=True)
        else:
            self.context.say(f"{count} frames written to {path}")

    def toggle_play(self) -> None:
        """Play from here at the recorded pace, or stop."""
        self.playing = not self.playing
        if self.playing:
            self.context.run(self._play(), "history-play", exclusive=True)

    async def _play(self) -> None:
        while self.playing:
            await asyncio.sleep(PLAY_SECONDS)
            if self.playing:
                self.step(1)

    # ------------------------------------------------------------------ reading

    def _look(self, find: Find, otherwise: str) -> None:
        """Show what ``find`` finds; if it finds nothing, say ``otherwise``."""
        self._waiting.append((find, otherwise))
        if not self._reading:
            self._reading = True
            self.context.run(self._read(), "history")

    async def _read(self) -> None:
        try:
            while self._waiting:
                find, otherwise = self._waiting.popleft()
                try:
                    found = await asyncio.to_thread(self._fetch, find)
                except HistoryError as error:
                    self._missed(str(error))
                else:
                    if found is None:
                        self._missed(otherwise)
                    else:
                        self.shown = found
                self.redraw()
        finally:
            self._reading = False

    def _missed(self, why: str) -> None:
        self.playing = False
        self.problem = why
        if self.shown is not None:
            self.context.say(why)

    def _fetch(self, find: Find) -> HistoryView | None:
        """Read what is to be shown. Runs in a thread."""
        position = find(self._history, self.shown.time if self.shown is not None else time.time())
        return None if position is None else read_view(self._history, position, self.seconds, self.shown)


def _write(history: RecordedHistory, path: Path, at: float) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_frames(path, history.frames(at - EXPORTED / 2, at + EXPORTED / 2))


def _at(frame: Frame | None, at: float) -> Position | None:
    return None if frame is None else Position(frame, at)
