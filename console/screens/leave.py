"""The question when quitting a console that started its engine: stop the engine, leave it running, or stay."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.screen import ModalScreen

from slotdeck.console.drawing.cells import Line, Span, blank, clean, exact
from slotdeck.console.screens.canvas import Canvas
from slotdeck.console.session.leaving import LeaveChoice, Leaving
from slotdeck.console.terminal.themes import ConsoleTheme

CELLS = 60


def _people(number: int, what: str) -> str:
    return f"{number} request{'' if number == 1 else 's'} {what}"


class LeaveScreen(ModalScreen[None]):
    """Asks, then shows the drain. The app calls :meth:`refresh_text` whenever it draws."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("s", "choose('stop')", "Stop the engine too"),
        ("l", "choose('leave')", "Leave it running"),
        ("escape,n,c", "choose('stay')", "Stay"),
        ("q,ctrl+c,f10,ctrl+q", "choose('force')", "Force"),
    ]

    def __init__(self, theme: ConsoleTheme, leaving: Leaving, *, ascii_only: bool) -> None:
        super().__init__()
        self._leaving = leaving
        self._canvas = Canvas(theme, ascii_only=ascii_only, id="panel")

    def compose(self) -> ComposeResult:
        yield self._canvas

    def on_mount(self) -> None:
        self.refresh_text()

    def on_resize(self) -> None:
        self.refresh_text()

    def action_choose(self, choice: LeaveChoice) -> None:
        """Answer the question: stop, leave, stay or force."""
        if self._leaving.choose(choice):
            self.dismiss(None)
        else:
            self.refresh_text()

    def refresh_text(self) -> None:
        """Draw the question, or the progress of the drain."""
        width = min(CELLS, self.app.size.width - 2)
        lines = [blank(width), *(exact(line, width) for line in self._text()), blank(width)]
        self._canvas.styles.width = width + 2  # with its border
        self._canvas.styles.height = len(lines) + 2
        self._canvas.show(lines)

    def _text(self) -> list[Line]:
        leaving = self._leaving
        view = leaving.session.store.view
        running = view.occupied or 0
        waiting = (view.frame.waiting_count or 0) if view.frame else 0
        if leaving.stage == "stopping":
            left = "no request is running" if not running else f"{_people(running, 'still running')}"
            return [
                ((f"  Stopping the engine: {left}.", "title"),),
                (("  New requests get 503 until it has ended.", "text"),),
                (),
                _choice("q", "stop now and cut running requests off"),
                _choice("l", "leave the console; the engine ends by itself"),
            ]
        if leaving.stage == "forcing":
            return [(("  Stopping the engine now.", "title"),)]
        idle = running + waiting == 0
        now = "No request is being served" if idle else f"{_people(running, 'running')}, {waiting} waiting"
        question: list[Line] = [
            ((f"  {now}. Leave how?", "title"),),
            (),
            _choice("s", "stop the engine too" if idle else "stop the engine too, once running requests finish"),
            *([_choice("", "waiting requests get 503")] if waiting else []),
            _choice("l", "leave it running (slotdeck finds it again)"),
            _choice("esc", "stay here"),
            _choice("q", "stop the engine now" if idle else "stop the engine now and cut requests off"),
        ]
        if leaving.problem:
            question += [(), ((f"  {clean(leaving.problem)}", "critical"),)]
        return question


def _choice(key: str, text: str) -> Line:
    spans: tuple[Span, ...] = ((f"  {key:<5}", "key"), (text, "text"))
    return spans
