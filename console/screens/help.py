"""Keys and signs, from the one registry of actions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.screen import ModalScreen

from slotdeck.console.drawing.cells import Line, Span, exact, left, wrap
from slotdeck.console.drawing.glyphs import BAR_CACHED, BAR_FREE, BAR_LIVE, STATE_MARKS
from slotdeck.console.drawing.scrolling import visible_from
from slotdeck.console.keys.keymap import Keymap
from slotdeck.console.screens.canvas import Canvas
from slotdeck.console.terminal.themes import ConsoleTheme

CELLS = 78

_STATES = {
    "idle": "free",
    "prefill": "its prompt is being read",
    "decode": "writes a token each step",
    "held": "done, waits for its batch",
    "preempted": "lost its KV, is computed again",
    "swapped": "its KV lies in host memory",
}


def help_lines(keymap: Keymap) -> list[Line]:
    """The whole text, each line of :data:`CELLS` cells."""
    lines: list[Line] = []
    for group, actions in keymap.groups().items():
        lines.append(exact([(f" {group}", "title")], CELLS))
        for action in actions:
            shown = action.shown
            for text in wrap(action.help, CELLS - 16, 2):
                lines.append(exact([(f"   {left(shown, 13)}", "key"), (text, "text")], CELLS))
                shown = ""
    lines.append(exact([(" Signs", "title")], CELLS))
    for state, meaning in _STATES.items():
        mark: Span = (f"   {STATE_MARKS[state]} {left(state, 11)}", state)
        lines.append(exact([mark, (meaning, "text")], CELLS))
    lines += [
        exact([("   ", "text"), (BAR_LIVE, "live"), (" live: KV of running requests  ", "text"), (BAR_CACHED, "cached"),
               (" cached: can be taken at any time  ", "text"), (BAR_FREE, "free"), (" free", "text")], CELLS),
        exact([("   TTFT = intake + queue wait + fill (prefill). ITL: gap between two tokens.", "text")], CELLS),
        exact([("   last gaps: second bar is the typical gap; each step up doubles it.", "text")], CELLS),
        exact([("   recompute x2 4.2s: preempted twice, stood still for 4.2 s, computed again.", "text")], CELLS),
        exact([("   Temperature 0 gives one text whatever else runs with fp32, or int8 weights", "text")], CELLS),
        exact([("   on native kernels; else the batch may turn a tie. Alone: mode serial.", "text")], CELLS),
        exact([("   –: not known.   n=: how many samples a percentile has.", "text")], CELLS),
    ]  # fmt: skip
    return lines


class HelpScreen(ModalScreen[None]):
    """A panel over the page. It scrolls if the terminal is too small for it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("escape,question_mark,f1,q,enter,space", "close", "Close"),
        ("down,j", "move(1)", "Down"),
        ("up,k", "move(-1)", "Up"),
        ("pagedown", "move(10)", "Page down"),
        ("pageup", "move(-10)", "Page up"),
        ("ctrl+c,f10,ctrl+q", "quit_console", "Quit"),
    ]

    def __init__(
        self, theme: ConsoleTheme, keymap: Keymap, on_quit: Callable[[], Awaitable[None]], *, ascii_only: bool
    ) -> None:
        super().__init__()
        self._on_quit = on_quit
        self._text = help_lines(keymap)
        self._canvas = Canvas(theme, ascii_only=ascii_only, id="panel")
        self._offset = 0

    def compose(self) -> ComposeResult:
        yield self._canvas

    def on_mount(self) -> None:
        self._draw()

    def on_resize(self) -> None:
        self._draw()

    def action_close(self) -> None:
        """Back to the page."""
        self.dismiss(None)

    def action_quit_console(self) -> None:
        """Quit, as from any page."""
        self.dismiss(None)
        self.app.call_later(self._on_quit)

    def action_move(self, rows: int) -> None:
        """Scroll."""
        self._offset += rows
        self._draw()

    def _draw(self) -> None:
        text = self._text
        room = max(1, self.app.size.height - 3)
        self._offset = visible_from(self._offset, len(text), room)
        shown = text[self._offset : self._offset + room]
        below = len(text) - self._offset - len(shown)
        more = f"   ↓ {below} more lines: j k" if below else ""
        cells = min(CELLS, self.app.size.width - 2)
        lines = [exact([*line], cells) for line in shown]
        lines.append(exact([(" esc closes", "key"), (more, "label")], cells))
        self._canvas.styles.width = cells + 2  # with its border
        self._canvas.styles.height = len(lines) + 2
        self._canvas.show(lines)
