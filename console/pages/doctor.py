"""The Doctor page: what is wrong now, the numbers that show it, what to change, and what earlier changes did."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from slotdeck.console.advice.doctor import diagnose
from slotdeck.console.advice.finding import Finding, Value, cost_text
from slotdeck.console.advice.window import Window, seconds_since_change
from slotdeck.console.drawing import formats
from slotdeck.console.drawing.cells import Line, Span, blank, exact
from slotdeck.console.drawing.scrolling import moved, scrolled, visible_from
from slotdeck.console.keys.actions import Command
from slotdeck.console.pages.context import PageContext
from slotdeck.console.pages.layout import Chrome, banner, framed, heading
from slotdeck.console.pages.page import Page, list_handlers
from slotdeck.console.planning.predictions import can_be_predicted, prediction_text
from slotdeck.console.sections.findings import early_lines, finding_lines, healthy_lines, outcome_lines
from slotdeck.console.sections.header import title_line
from slotdeck.console.sources.history import RecordedHistory
from slotdeck.console.state.store import LogEntry, View
from slotdeck.engine.telemetry.frame import Frame, WindowInfo
from slotdeck.engine.telemetry.history.reader import HistoryError

WINDOW = 600.0
"""Seconds of frames that are diagnosed."""
DIAGNOSIS_SECONDS = 2.0
"""Seconds between two diagnoses while the page is open."""
PREDICTION_SECONDS = 300.0
"""Seconds after which a prediction is computed again from newer traffic."""
MAX_OUTCOMES = 2
"""Changes whose outcome is shown."""


@dataclass(frozen=True)
class Diagnosis:
    """What the frames of the window show."""

    findings: tuple[Finding, ...]
    """The worst first."""
    latency: WindowInfo
    """The percentiles that were judged."""
    early: float | None
    """Seconds since a change that is too recent to be judged; ``None`` if there is none."""
    newest: Frame
    seconds: float
    """Length of the window."""
    frames: int


@dataclass(frozen=True)
class PredictedEffect:
    """What the change of a finding is predicted to do, and when that was computed."""

    changes: dict[str, Value]
    time: float
    text: str


class DoctorPage(Page):
    """Begins with recorded frames and goes on with new ones. Nothing is computed while another page is shown."""

    name = "doctor"

    def __init__(self, context: PageContext) -> None:
        super().__init__(context)
        self.diagnosis: Diagnosis | None = None
        self._frames: deque[Frame] = deque()
        self._open = False
        self._predicted: dict[str, PredictedEffect] = {}
        """By rule."""
        self._rule: str | None = None
        """Rule of the selected finding, which stays selected when the order changes; None: the first."""
        self._offset = 0
        """First line that is shown."""
        self._follow = True
        """The selected finding is kept visible; False after scrolling."""
        self.handlers = {
            **list_handlers(self.select, lambda: 1),
            Command.PAGE: self.scroll,
            Command.APPLY_REMEDY: self.propose_remedy,
        }

    # ------------------------------------------------------------------ diagnosis, in the background

    def opened(self, argument: str | None) -> None:
        """Diagnose now, and again every few seconds."""
        self._open = True
        self.context.run(self._watch(), "doctor", exclusive=True)

    def closed(self) -> None:
        """Stop."""
        self._open = False

    async def _watch(self) -> None:
        self._frames.clear()
        begun = False
        while self._open:
            newest = self.context.newest.frame
            if newest is not None and not begun:
                begun = True
                self._frames.extend(await asyncio.to_thread(_recorded, self.context.session.open_history(), newest))
            self._take(newest)
            frames = list(self._frames)
            if frames:
                self.diagnosis = await asyncio.to_thread(_diagnose, frames)
            self.redraw()
            if frames:
                await self._predict(frames)
            await asyncio.sleep(DIAGNOSIS_SECONDS)

    def _take(self, frame: Frame | None) -> None:
        if frame is None or (self._frames and frame.time <= self._frames[-1].time):
            return
        self._frames.append(frame)
        while self._frames[-1].time - self._frames[0].time > WINDOW:
            self._frames.popleft()

    async def _predict(self, frames: list[Frame]) -> None:
        """Predict the effect of the selected finding's change. It takes seconds, so it is done once for each change."""
        finding = self.selected
        if finding is None or not can_be_predicted(finding) or finding.in_force(frames[-1].limits):
            return
        known = self._predicted.get(finding.rule)
        if known is None or known.changes != finding.changes or frames[-1].time - known.time > PREDICTION_SECONDS:
            history = self.context.session.open_history()
            text = await asyncio.to_thread(prediction_text, frames, finding, history)
            self._predicted[finding.rule] = PredictedEffect(dict(finding.changes), frames[-1].time, text)
            self.redraw()

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What is wrong, the worst first."""
        return self.diagnosis.findings if self.diagnosis else ()

    @property
    def selected(self) -> Finding | None:
        """The finding that the keys act on."""
        return self.findings[self._place] if self.findings else None

    @property
    def _place(self) -> int:
        return next((place for place, one in enumerate(self.findings) if one.rule == self._rule), 0)

    # ------------------------------------------------------------------ drawing

    def compose(self, view: View, chrome: Chrome, width: int, height: int) -> list[Line]:
        top = [title_line(view, width), heading("Doctor", self._note(), width), banner(view, chrome, width)]

        def body(room: int) -> list[Line]:
            text, chosen = self._text(view, width)
            return scrolled(text, self._first_line(text, chosen, room), room, width, "j k, PgDn")

        return framed(top, body, chrome, width, height)

    def _first_line(self, text: list[Line], chosen: range, height: int) -> int:
        """Where the visible part begins. The selected finding ends above the row that says how much follows."""
        keep = range(chosen.start, chosen.stop + (chosen.stop < len(text))) if self._follow and chosen else None
        return visible_from(self._offset, len(text), height, keep)

    def _note(self) -> str:
        diagnosis = self.diagnosis
        if diagnosis is None:
            return ""
        frames = f"{diagnosis.frames} {'frame' if diagnosis.frames == 1 else 'frames'}"
        return f"the last {formats.clock(diagnosis.seconds)}, {frames}"

    def _text(self, view: View, width: int) -> tuple[list[Line], range]:
        """All lines, and which of them belong to the selected finding."""
        diagnosis = self.diagnosis
        if diagnosis is None:
            return [exact([(" looking …" if view.frame else " no engine is connected", "label")], width)], range(0)
        head = outcome_lines(_outcomes(view, diagnosis.newest.time - WINDOW), width)
        if not diagnosis.findings:
            healthy = healthy_lines(diagnosis.newest, diagnosis.latency, width)
            return [*head, exact([_verdict(view)], width), blank(width), *healthy], range(0)
        if diagnosis.early is not None:
            head += [*early_lines(diagnosis.early, width), blank(width)]
        finding = diagnosis.findings[self._place]
        known = self._predicted.get(finding.rule)
        predicted = known.text if known is not None and known.changes == finding.changes else ""
        lines, chosen = finding_lines(diagnosis.findings, self._place, view.limits, width, predicted)
        return [*head, *lines], range(chosen.start + len(head), chosen.stop + len(head))

    def copied(self) -> str | None:
        """The findings as text."""
        if not self.findings:
            return None
        texts = [[f.title, *f.evidence, f.explanation, f"remedy: {f.remedy}", cost_text(f)] for f in self.findings]
        return "\n\n".join("\n".join(filter(None, lines)) for lines in texts)

    # ------------------------------------------------------------------ commands

    def propose_remedy(self) -> None:
        """Propose what the selected finding would change: enter applies it, any other key drops it."""
        finding = self.selected
        if finding is None or self.diagnosis is None:
            return
        if finding.in_force(self.diagnosis.newest.limits):
            self.context.say(f"already in force: {finding.remedy}")
        elif finding.changes:
            self.context.propose(finding.changes)
        else:
            self.context.say(f"no live setting helps here: {finding.remedy}", failed=True)

    def select(self, step: int) -> None:
        """Select another finding and bring it into view."""
        if self.findings:
            self._rule = self.findings[moved(self._place, step, len(self.findings))].rule
            self._follow = True
            self._offset = self._shown_from()

    def scroll(self, direction: int) -> None:
        """Scroll by half a page."""
        self._offset = self._shown_from() + direction * max(1, self.body_height() // 2)
        self._follow = False
        self._offset = self._shown_from()

    def _shown_from(self) -> int:
        text, chosen = self._text(self.context.view, self.context.size[0])
        return self._first_line(text, chosen, self.body_height())


def _verdict(view: View) -> Span:
    if view.end is not None:
        return (" The engine has ended; nothing was wrong until then.", "critical")
    if view.disconnected is not None:
        return (" The engine does not answer; nothing was wrong until then.", "warn")
    return (" Nothing is wrong.", "ok")


def _outcomes(view: View, since: float) -> list[LogEntry]:
    return [entry for entry in view.events if entry.kind == "compared" and entry.time >= since][-MAX_OUTCOMES:]


def _diagnose(frames: list[Frame]) -> Diagnosis:
    return Diagnosis(
        tuple(diagnose(frames)), Window(frames).latency, seconds_since_change(frames), frames[-1],
        frames[-1].time - frames[0].time, len(frames),
    )  # fmt: skip


def _recorded(history: RecordedHistory, newest: Frame) -> list[Frame]:
    """The recorded frames of the last minutes of this engine; empty if it records none."""
    try:
        frames = list(history.frames(newest.time - WINDOW, newest.time))
    except HistoryError:
        return []
    return frames if frames and frames[-1].boot_id == newest.boot_id else []
