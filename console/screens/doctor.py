"""The Doctor page: what is wrong now, the numbers it rests on, and what to turn."""

from __future__ import annotations

import asyncio
from collections import deque
from math import ceil
from typing import TYPE_CHECKING

from console.screens.page import Chrome, Page, banner, framed, heading
from console.store import View
from console.widgets import formats
from console.widgets.cells import Line, Span, blank, clean, exact, wrap
from console.widgets.engine_lines import title_line
from engine.advice.doctor import Finding, diagnose
from engine.settings import SETTINGS
from engine.telemetry.frame import Frame
from engine.telemetry.history import History, HistoryError
from engine.telemetry.history_file import history_path

if TYPE_CHECKING:
    from console.app import ConsoleApp

WINDOW = 600.0
"""Seconds looked back on."""
LOOK_SECONDS = 2.0
"""Between two looks while the page is open."""


class DoctorPage(Page):
    """Begins with what is recorded and goes on with what comes. Nothing is done while another page is shown."""

    name = "doctor"

    def __init__(self, app: ConsoleApp) -> None:
        super().__init__(app)
        self.findings: list[Finding] | None = None
        self._frames: deque[Frame] = deque()
        self._open = False
        self._offset = 0
        self._rows = 1

    def opened(self, argument: str | int | None) -> None:
        """Look, and go on looking."""
        self._open = True
        self.app.run_worker(self._watch(), group="doctor", exclusive=True, exit_on_error=False)

    def closed(self) -> None:
        """Look no longer."""
        self._open = False

    async def _watch(self) -> None:
        self._frames.clear()
        begun = False
        while self._open:
            newest = self.app.store.view.frame
            if newest is not None and not begun:
                begun = True
                self._frames.extend(await asyncio.to_thread(_recorded, newest))
            self._take(newest)
            frames = list(self._frames)
            self.findings = await asyncio.to_thread(diagnose, frames)
            self.redraw()
            await asyncio.sleep(LOOK_SECONDS)

    def _take(self, frame: Frame | None) -> None:
        if frame is None or (self._frames and frame.time <= self._frames[-1].time):
            return
        self._frames.append(frame)
        while self._frames[-1].time - self._frames[0].time > WINDOW:
            self._frames.popleft()

    # ------------------------------------------------------------------ what is drawn

    def compose(self, view: View, chrome: Chrome, cells: int, rows: int) -> list[Line]:
        top = [title_line(view, cells), heading("Doctor", self._looked_at(), cells), banner(view, chrome, cells)]

        def body(left: int) -> list[Line]:
            text = self._text(view, cells)
            self._rows = left
            self._offset = max(0, min(self._offset, len(text) - left))
            shown = text[self._offset : self._offset + left]
            hidden = len(text) - self._offset - len(shown)
            if hidden and shown:
                shown[-1] = exact([(f" ↓ {hidden + 1} more lines", "key"), ("  j k", "label")], cells)
            return shown

        return framed(top, body, chrome, cells, rows)

    def _looked_at(self) -> str:
        if not self._frames:
            return ""
        seconds = self._frames[-1].time - self._frames[0].time
        return f"the last {formats.clock(seconds)}, {len(self._frames)} frames"

    def _text(self, view: View, cells: int) -> list[Line]:
        if self.findings is None or not self._frames:
            return [exact([(" looking …" if view.frame else " no engine is connected", "label")], cells)]
        if not self.findings:
            return [exact([(" Nothing is wrong.", "ok")], cells), blank(cells), *_numbers(self._frames[-1], cells)]
        lines: list[Line] = []
        for finding in self.findings:
            lines += [*_finding_lines(finding, cells), blank(cells)]
        return lines[:-1]

    def copied(self) -> str | None:
        """The findings as text."""
        if not self.findings:
            return None
        return "\n\n".join("\n".join((f.what, *f.evidence, f.why, f"turn: {f.turn}")) for f in self.findings)

    # ------------------------------------------------------------------ keys

    def action_move(self, rows: int) -> None:
        """Scroll."""
        self._offset = max(0, self._offset + rows)

    def action_page(self, direction: int) -> None:
        """Scroll by a page."""
        self.action_move(direction * max(1, ceil(self._rows / 2)))

    def action_end(self, direction: int) -> None:
        """To the first or the last finding."""
        self.action_move(direction * 10**6)


def _finding_lines(finding: Finding, cells: int) -> list[Line]:
    mark = "!" if finding.level == "critical" else "-"
    lines = [exact([(f" {mark} ", finding.level), (finding.what, finding.level)], cells)]
    for text in finding.evidence:
        lines += [exact([("     ", "text"), (row, "value")], cells) for row in wrap(clean(text), cells - 6, 2)]
    lines += [exact([("   ", "text"), (row, "text")], cells) for row in wrap(finding.why, cells - 4, 3)]
    key = SETTINGS[finding.knob].key if finding.knob in SETTINGS else None
    hand: list[Span] = [("   key ", "label"), (key, "key")] if key else []
    lines.append(exact([("   turn  ", "label"), (finding.turn, "title"), *hand], cells))
    return lines


def _numbers(frame: Frame, cells: int) -> list[Line]:
    """What is well, so that silence can be trusted."""
    late = frame.ten_minutes
    rows: list[tuple[str, str, int | None]] = [
        ("TTFT p95", formats.seconds(late.ttft_p95), late.ttft_count),
        ("queue wait p95", formats.seconds(late.wait_p95), late.wait_count),
        ("ITL p95", formats.gap(late.itl_p95), late.itl_count),
        ("preemptions", formats.count(frame.counters.preemptions), None),
        ("refused with 503", formats.count(frame.counters.rejected), None),
    ]
    lines = []
    for label, value, number in rows:
        count = f"  n={formats.count(number)} in 10 min" if number is not None else "  since the start"
        lines.append(exact([(f"   {label:<18}", "label"), (f"{value:>7}", "value"), (count, "label")], cells))
    return lines


def _recorded(newest: Frame) -> list[Frame]:
    """The last minutes of this engine from the history; nothing if it keeps none."""
    try:
        frames = list(History(history_path()).frames(newest.time - WINDOW, newest.time))
    except HistoryError:
        return []
    return frames if frames and frames[-1].boot_id == newest.boot_id else []
