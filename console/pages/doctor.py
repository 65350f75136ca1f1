"""The Doctor page: what is wrong now, the numbers it rests on, what to turn, and what came of turning it."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

from slotdeck.console.advice.doctor import diagnose
from slotdeck.console.advice.finding import Finding, Value, cost_text
from slotdeck.console.advice.window import Window, seconds_since_change
from slotdeck.console.drawing import formats
from slotdeck.console.drawing.cells import Line, Span, blank, exact
from slotdeck.console.pages.page import Chrome, Page, banner, framed, heading
from slotdeck.console.planning.predictions import can_be_predicted, prediction_text
from slotdeck.console.sections.findings import early_lines, finding_lines, outcome_lines, well_lines
from slotdeck.console.sections.header import title_line
from slotdeck.console.state.store import LogEntry, View
from slotdeck.engine.paths import history_path
from slotdeck.engine.telemetry.frame import Frame, WindowInfo
from slotdeck.engine.telemetry.history.reader import History, HistoryError

if TYPE_CHECKING:
    from slotdeck.console.app import ConsoleApp

WINDOW = 600.0
"""Seconds looked back on."""
LOOK_SECONDS = 2.0
"""Between two looks while the page is open."""
PREDICTED_FOR = 300.0
"""Seconds after which a prediction is made anew from newer traffic."""
OUTCOMES = 2
"""Changes of which it is told what came of them."""


@dataclass(frozen=True)
class Look:
    """What one look at the frames found."""

    findings: list[Finding]
    late: WindowInfo
    """The percentiles that were judged."""
    early: float | None
    """Seconds since a change that is too young to be judged."""


@dataclass(frozen=True)
class Expectation:
    """What a change is predicted to do, and for which change and when it was computed."""

    changes: dict[str, Value]
    time: float
    text: str


class DoctorPage(Page):
    """Begins with what is recorded and goes on with what comes. Nothing is done while another page is shown."""

    name = "doctor"

    def __init__(self, app: ConsoleApp) -> None:
        super().__init__(app)
        self.look: Look | None = None
        self._frames: deque[Frame] = deque()
        self._open = False
        self._expected: dict[str, Expectation] = {}
        """By rule."""
        self._rule: str | None = None
        """Of the selected finding, which keeps its selection when the ranks change; None: the first."""
        self._offset = 0
        self._follow = True
        """The selected finding is to be in sight; False after scrolling by hand."""
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
            if frames:
                self.look = await asyncio.to_thread(_look, frames)
            self.redraw()
            if frames:
                await self._predict(frames)
            await asyncio.sleep(LOOK_SECONDS)

    async def _predict(self, frames: list[Frame]) -> None:
        """What the selected finding's change would do, once for each change: it takes seconds."""
        finding = self.selected
        if finding is None or not can_be_predicted(finding) or finding.in_force(frames[-1].limits):
            return
        done = self._expected.get(finding.rule)
        if done is None or done.changes != finding.changes or frames[-1].time - done.time > PREDICTED_FOR:
            text = await asyncio.to_thread(prediction_text, frames, finding)
            self._expected[finding.rule] = Expectation(dict(finding.changes), frames[-1].time, text)
            self.redraw()

    def _take(self, frame: Frame | None) -> None:
        if frame is None or (self._frames and frame.time <= self._frames[-1].time):
            return
        self._frames.append(frame)
        while self._frames[-1].time - self._frames[0].time > WINDOW:
            self._frames.popleft()

    @property
    def findings(self) -> list[Finding]:
        """What is wrong, the worst first."""
        return self.look.findings if self.look else []

    @property
    def selected(self) -> Finding | None:
        """The finding that keys are about."""
        return self.findings[self._place] if self.findings else None

    @property
    def _place(self) -> int:
        return next((place for place, one in enumerate(self.findings) if one.rule == self._rule), 0)

    # ------------------------------------------------------------------ what is drawn

    def compose(self, view: View, chrome: Chrome, cells: int, rows: int) -> list[Line]:
        top = [title_line(view, cells), heading("Doctor", self._looked_at(), cells), banner(view, chrome, cells)]

        def body(left: int) -> list[Line]:
            text, chosen = self._text(view, cells)
            self._rows = left
            if self._follow and chosen.stop > self._offset + left - (chosen.stop < len(text)):
                self._offset = chosen.stop - left + (chosen.stop < len(text))
            if self._follow and chosen.start < self._offset:
                self._offset = chosen.start
            self._offset = max(0, min(self._offset, len(text) - left))
            visible = text[self._offset : self._offset + left]
            hidden = len(text) - self._offset - len(visible)
            if hidden and visible:
                visible[-1] = exact([(f" ↓ {hidden + 1} more lines", "key"), ("  j k, PgDn", "label")], cells)
            return visible

        return framed(top, body, chrome, cells, rows)

    def _looked_at(self) -> str:
        if not self._frames:
            return ""
        seconds = self._frames[-1].time - self._frames[0].time
        number = len(self._frames)
        return f"the last {formats.clock(seconds)}, {number} {'frame' if number == 1 else 'frames'}"

    def _text(self, view: View, cells: int) -> tuple[list[Line], range]:
        """The lines, and those of them that are the selected finding's."""
        if self.look is None or not self._frames:
            return [exact([(" looking …" if view.frame else " no engine is connected", "label")], cells)], range(0)
        head = outcome_lines(self._outcomes(view), cells)
        if not self.findings:
            well = well_lines(self._frames[-1], self.look.late, cells)
            if view.end is None and view.disconnected is None:
                verdict: Span = (" Nothing is wrong.", "ok")
            elif view.end is None:
                verdict = (" The engine does not answer; nothing was wrong until then.", "warn")
            else:
                verdict = (" The engine has ended; nothing was wrong until then.", "critical")
            return [*head, exact([verdict], cells), blank(cells), *well], range(0)
        if self.look.early is not None:
            head += [*early_lines(self.look.early, cells), blank(cells)]
        done = self._expected.get(self.findings[self._place].rule)
        expected = done.text if done is not None and done.changes == self.findings[self._place].changes else ""
        lines, chosen = finding_lines(self.findings, self._place, view.limits, cells, expected)
        return [*head, *lines], range(chosen.start + len(head), chosen.stop + len(head))

    def _outcomes(self, view: View) -> list[LogEntry]:
        since = self._frames[-1].time - WINDOW
        return [entry for entry in view.events if entry.kind == "compared" and entry.time >= since][-OUTCOMES:]

    def copied(self) -> str | None:
        """The findings as text."""
        if not self.findings:
            return None
        texts = [[f.title, *f.evidence, f.explanation, f"turn: {f.remedy}", cost_text(f)] for f in self.findings]
        return "\n\n".join("\n".join(filter(None, lines)) for lines in texts)

    # ------------------------------------------------------------------ keys

    def action_remedy(self) -> None:
        """Offer what the selected finding would change: enter applies it, any other key drops it."""
        finding = self.selected
        if finding is None:
            return
        if self._frames and finding.in_force(self._frames[-1].limits):
            self.app.say(f"in force by now: {finding.remedy}")
        elif finding.changes:
            self.app.knob_hand.offer(finding.changes)
        else:
            self.app.say(f"no knob helps here: {finding.remedy}", failed=True)

    def action_move(self, rows: int) -> None:
        """Select another finding."""
        if self.findings:
            self._select(self._place + rows)

    def action_end(self, direction: int) -> None:
        """Select the first or the last finding."""
        if self.findings:
            self._select(0 if direction < 0 else len(self.findings) - 1)

    def action_page(self, direction: int) -> None:
        """Scroll by a page."""
        self._follow = False
        self._offset = max(0, self._offset + direction * max(1, ceil(self._rows / 2)))

    def _select(self, place: int) -> None:
        self._rule = self.findings[max(0, min(place, len(self.findings) - 1))].rule
        self._follow = True


def _look(frames: list[Frame]) -> Look:
    return Look(diagnose(frames), Window(frames).latency, seconds_since_change(frames))


def _recorded(newest: Frame) -> list[Frame]:
    """The last minutes of this engine from the history; nothing if it keeps none."""
    try:
        frames = list(History(history_path()).frames(newest.time - WINDOW, newest.time))
    except HistoryError:
        return []
    return frames if frames and frames[-1].boot_id == newest.boot_id else []
