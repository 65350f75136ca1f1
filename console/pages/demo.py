"""The Demo page: 2, 5 and 20 users under three ways of batching, side by side, or one of five scenes."""

from __future__ import annotations

import time
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

from slotdeck.console.demo.export import as_text
from slotdeck.console.demo.live import demo_lines, row_of_interest
from slotdeck.console.demo.perform import others, warning
from slotdeck.console.demo.rows import total_seconds
from slotdeck.console.demo.scenes import SCENES
from slotdeck.console.demo.state import DemoState, Event
from slotdeck.console.demo.wanted import Wanted
from slotdeck.console.drawing.cells import Line, blank, exact, left, right, wrap
from slotdeck.console.pages.page import Chrome, Page, banner, framed, heading
from slotdeck.console.processes.demo_process import DemoControl, DemoProcess
from slotdeck.console.sections.header import title_line
from slotdeck.console.session.prompts import Question
from slotdeck.console.state.store import View
from slotdeck.engine.paths import state_folder

if TYPE_CHECKING:
    from slotdeck.console.app import ConsoleApp

ABOUT = (
    "People read for 20 to 60 s between two turns, agents never pause, documents are long prompts with short answers. "
    "Each row runs on this engine in one mode: serial, static or continuous, with the same people at the same times. "
    "Your settings come back at the end, however it ends."
)


@dataclass(frozen=True)
class Choice:
    """One thing that can be shown."""

    title: str
    wanted: Wanted


CHOICES = (
    Choice("2, 5 and 20 people, then agents", Wanted()),
    Choice("2, 5 and 20 agents, who never pause", Wanted(who=("agent",))),
    Choice("2, 5 and 20 people, a minute each", Wanted(who=("human",), seconds=60)),
    Choice("2, 5 and 20 jobs of documents", Wanted(who=("document",))),
    Choice("5 agents, one minute in all", Wanted(users=(5,), who=("agent",), seconds=15)),
    *(Choice(f"scene: {scene.title}", Wanted(scenes=(scene.name,))) for scene in SCENES.values()),
)


class DemoPage(Page):
    """A menu, or the demonstration that runs or ran. It goes on while another page is shown."""

    name = "demo"

    def __init__(self, app: ConsoleApp) -> None:
        super().__init__(app)
        socket = app.socket
        self.control: DemoControl | None = None if socket is None else DemoProcess(socket)
        self.state: DemoState | None = None
        self.folder: Path | None = None
        self._choice = 0
        self._row: int | None = None
        """The row that was selected; ``None`` follows the one that runs."""
        self._rows = 1

    # ------------------------------------------------------------------ what is drawn

    def compose(self, view: View, chrome: Chrome, cells: int, rows: int) -> list[Line]:
        note = "who gets what from the same engine in three modes" if self.state is None else self._note()
        top = [title_line(view, cells), heading("Demo", note, cells), banner(view, chrome, cells)]

        def body(left: int) -> list[Line]:
            self._rows = left
            if self.state is None:
                return self._menu(cells, left)
            return demo_lines(self.state, self._selected, cells, left)

        return framed(top, body, chrome, cells, rows)

    def _note(self) -> str:
        assert self.state is not None
        if self.state.running:
            return "x ends it, and the settings come back"
        return "esc for another one, y copies the table"

    @property
    def _selected(self) -> int | None:
        assert self.state is not None
        return row_of_interest(self.state) if self._row is None else self._row

    def _menu(self, cells: int, rows: int) -> list[Line]:
        lines = []
        size = min(58, cells - 25)
        for number, choice in enumerate(CHOICES):
            chosen = number == self._choice
            expected = choice.wanted.expected()
            seconds, count = total_seconds(expected), len(expected)
            length = f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"
            lines.append(
                exact(
                    [
                        (f" {'›' if chosen else ' '} ", "key"),
                        (left(choice.title, size), "title" if chosen else "text"),
                        (right(f"{count} rows", 8), "label"),
                        (right(f"about {length}", 13), "label"),
                    ],
                    cells,
                )
            )
        text = [exact([(f" {part}", "label")], cells) for part in wrap(ABOUT, cells - 2, 5)]
        if rows >= len(lines) + len(text) + 1:
            return [*lines, blank(cells), *text]
        start = max(0, min(self._choice - rows // 2, len(lines) - rows))
        return lines[start : start + rows]

    def copied(self) -> str | None:
        """The table with its sentences."""
        return None if self.state is None or not self.state.rows else as_text(self.state)

    # ------------------------------------------------------------------ keys

    def back(self) -> bool:
        """From what was shown to the menu; one that runs goes on behind the page before."""
        if self.state is None or self.state.running or not self.state.ended:
            return False
        self.state, self._row = None, None
        return True

    def action_move(self, step: int) -> None:
        """The next choice or row."""
        if self.state is None:
            self._choice = max(0, min(len(CHOICES) - 1, self._choice + step))
        elif self.state.rows:
            self._row = max(0, min(len(self.state.rows) - 1, (self._selected or 0) + step))

    def action_page(self, direction: int) -> None:
        """Half a page of them."""
        self.action_move(direction * max(1, ceil(self._rows / 2)))

    def action_end(self, direction: int) -> None:
        """The first or the last; the last row again follows the one that runs."""
        self.action_move(direction * 1000)
        if self.state is not None and self.state.running and direction > 0:
            self._row = None

    def action_begin(self) -> None:
        """Start what is selected; asked first while others are served."""
        if self.state is not None:
            if self.state.ended:
                self.back()
            return
        if self.control is None:
            self.app.say("the demo needs an engine of one's own", failed=True)
            return
        view = self.app.store.view
        if view.frame is None or view.disconnected is not None:
            self.app.say("no engine is connected", failed=True)
            return
        if self.app.load_runs:
            self.app.say("simulated users are here and would disturb it: L sends them away", failed=True)
            return
        count = others(view.frame)
        if count:
            self.app.prompt = Question("start the demo?", warning(count), self._begin)
        else:
            self._begin()

    def show(self, state: DemoState, row: int | None = None) -> None:
        """Show a demonstration, that of a report for example, with this row selected."""
        self.state, self._row = state, row
        self.redraw()

    def _begin(self) -> None:
        wanted = CHOICES[self._choice].wanted
        self.state, self._row = DemoState(status="starting"), None
        self.folder = state_folder() / "exports" / time.strftime("demo-%Y%m%d-%H%M%S")
        self.app.run_worker(self._run(wanted, self.folder), group="demo", exit_on_error=False)

    async def _run(self, wanted: Wanted, folder: Path) -> None:
        assert self.control is not None
        state = self.state
        assert state is not None

        def tell(event: Event) -> None:
            state.apply(event)
            if event["event"] == "end":
                self.app.say(
                    f"the demo: {state.end_text}" + (f"; reports and recording in {folder}" if state.files else "")
                )
            if self.app.page is self:
                self.redraw()

        try:
            await self.control.run(wanted, folder, tell)
        except (OSError, ValueError) as error:
            tell({"event": "end", "how": "failed", "text": f"the demo could not be run: {error}"})

    def action_halt(self) -> None:
        """End it early."""
        if self.control is not None and self.state is not None and not self.state.ended:
            self.state.status = "giving the settings back"
            self.control.stop()
