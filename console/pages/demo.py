"""The Demo page: 2, 5 and 20 users in three batching modes side by side, or one of five scenes."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from slotdeck.console.demo.export import as_text
from slotdeck.console.demo.live import demo_lines, row_of_interest
from slotdeck.console.demo.perform import others, warning
from slotdeck.console.demo.rows import total_seconds
from slotdeck.console.demo.scenes import SCENES
from slotdeck.console.demo.state import DemoState, Event
from slotdeck.console.demo.wanted import Wanted
from slotdeck.console.drawing.cells import Line, blank, exact, left, right, wrap
from slotdeck.console.drawing.scrolling import moved, visible_from
from slotdeck.console.keys.actions import Command
from slotdeck.console.pages.context import PageContext
from slotdeck.console.pages.layout import Chrome, banner, framed, heading
from slotdeck.console.pages.page import Page, list_handlers
from slotdeck.console.processes.demo_process import DemoControl, DemoProcess
from slotdeck.console.sections.header import title_line
from slotdeck.console.session.prompts import ConfirmPrompt
from slotdeck.console.state.store import View
from slotdeck.engine.paths import state_folder

ABOUT = (
    "People read for 20 to 60 s between two turns, agents never pause, documents are long prompts with short answers. "
    "Each row runs on this engine in one mode: serial, static or continuous, with the same users at the same times. "
    "Your settings are restored at the end, even if the demo fails."
)


@dataclass(frozen=True)
class DemoChoice:
    """One entry of the menu."""

    title: str
    wanted: Wanted


CHOICES = (
    DemoChoice("2, 5 and 20 people, then agents", Wanted()),
    DemoChoice("2, 5 and 20 agents, who never pause", Wanted(who=("agent",))),
    DemoChoice("2, 5 and 20 people, a minute each", Wanted(who=("human",), seconds=60)),
    DemoChoice("2, 5 and 20 jobs of documents", Wanted(who=("document",))),
    DemoChoice("5 agents, one minute in all", Wanted(users=(5,), who=("agent",), seconds=15)),
    *(DemoChoice(f"scene: {scene.title}", Wanted(scenes=(scene.name,))) for scene in SCENES.values()),
)


class DemoPage(Page):
    """A menu, or the demo that runs or has run. A demo goes on while another page is shown."""

    name = "demo"

    def __init__(self, context: PageContext) -> None:
        super().__init__(context)
        socket = context.socket
        self.control: DemoControl | None = None if socket is None else DemoProcess(socket)
        self.state: DemoState | None = None
        self.folder: Path | None = None
        self._choice = 0
        self._row: int | None = None
        """The selected row; ``None`` follows the one that runs."""
        self.handlers = {
            **list_handlers(self.move, lambda: self.body_height() // 2),
            Command.END: self.end,
            Command.START_DEMO: self.start,
            Command.STOP_DEMO: self.stop,
        }

    # ------------------------------------------------------------------ what is drawn

    def compose(self, view: View, chrome: Chrome, width: int, height: int) -> list[Line]:
        note = "who gets what from the same engine in three modes" if self.state is None else self._note()
        top = [title_line(view, width), heading("Demo", note, width), banner(view, chrome, width)]

        def body(left: int) -> list[Line]:
            if self.state is None:
                return self._menu(width, left)
            return demo_lines(self.state, self._selected, width, left)

        return framed(top, body, chrome, width, height)

    def _note(self) -> str:
        assert self.state is not None
        if self.state.running:
            return "x ends it and restores the settings"
        return "esc goes to the menu, y copies the table"

    @property
    def _selected(self) -> int | None:
        assert self.state is not None
        return row_of_interest(self.state) if self._row is None else self._row

    def _menu(self, width: int, height: int) -> list[Line]:
        lines = []
        size = min(58, width - 25)
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
                    width,
                )
            )
        text = [exact([(f" {part}", "label")], width) for part in wrap(ABOUT, width - 2, 5)]
        if height >= len(lines) + len(text) + 1:
            return [*lines, blank(width), *text]
        start = visible_from(self._choice - height // 2, len(lines), height)
        return lines[start : start + height]

    def copied(self) -> str | None:
        """The table with its sentences, once there are rows."""
        return None if self.state is None or not self.state.rows else as_text(self.state)

    # ------------------------------------------------------------------ keys

    def back(self) -> bool:
        """Go from a finished demo to the menu. A running demo goes on while another page is shown."""
        if self.state is None or self.state.running or not self.state.ended:
            return False
        self.state, self._row = None, None
        return True

    def move(self, step: int) -> None:
        """Select another choice or row."""
        if self.state is None:
            self._choice = moved(self._choice, step, len(CHOICES))
        elif self.state.rows:
            self._row = moved(self._selected or 0, step, len(self.state.rows))

    def end(self, direction: int) -> None:
        """Select the first or the last one. The last row of a running demo follows the row that runs."""
        self.move(direction * 1000)
        if self.state is not None and self.state.running and direction > 0:
            self._row = None

    def start(self) -> None:
        """Start the selected demo. If requests of others are being served, ask first."""
        if self.state is not None:
            if self.state.ended:
                self.back()
            return
        if self.control is None:
            self.context.say("the demo needs an engine on this machine", failed=True)
            return
        view = self.context.newest
        if view.frame is None or view.disconnected is not None:
            self.context.say("no engine is connected", failed=True)
            return
        if self.context.load.users is not None:
            self.context.say("simulated users would disturb the demo: L stops them", failed=True)
            return
        count = others(view.frame)
        if count:
            self.context.ask(ConfirmPrompt("start the demo?", warning(count), self._start))
        else:
            self._start()

    def show(self, state: DemoState, row: int | None = None) -> None:
        """Show a demo, for example that of a report, with this row selected."""
        self.state, self._row = state, row
        self.redraw()

    def _start(self) -> None:
        wanted = CHOICES[self._choice].wanted
        self.state, self._row = DemoState(status="starting"), None
        self.folder = state_folder() / "exports" / time.strftime("demo-%Y%m%d-%H%M%S")
        self.context.run(self._run(wanted, self.folder), "demo")

    async def _run(self, wanted: Wanted, folder: Path) -> None:
        assert self.control is not None
        state = self.state
        assert state is not None

        def on_event(event: Event) -> None:
            state.apply(event)
            if event["event"] == "end":
                where = f"; reports and recording in {folder}" if state.files else ""
                self.context.say(f"the demo: {state.end_text}{where}")
            self.redraw()

        try:
            await self.control.run(wanted, folder, on_event)
        except (OSError, ValueError) as error:
            on_event({"event": "end", "how": "failed", "text": f"the demo could not be run: {error}"})

    def stop(self) -> None:
        """End the demo early."""
        if self.control is not None and self.state is not None and not self.state.ended:
            self.state.status = "restoring the settings"
            self.control.stop()
