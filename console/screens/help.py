"""The help screen: keys, from the registry of actions, and signs."""

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
    "prefill": "its prompt is being computed",
    "decode": "generates a token in each step",
    "held": "finished, waits for its batch",
    "preempted": "lost its KV and is computed again",
    "swapped": "its KV is in host memory",
}


def help_lines(keymap: Keymap) -> list[Line]:
    """The whole text; each line has :data:`CELLS` cells."""
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
               (" cached: can be evicted  ", "text"), (BAR_FREE, "free"), (" free", "text")], CELLS),
        exact([("   TTFT = preprocessing (prep) + queue (q) + prefill. ITL: gap between tokens.", "text")], CELLS),
        exact([("   last gaps: the second bar is the typical gap; each step up doubles it.", "text")], CELLS),
        exact([("   recompute x2 4.2s: preempted twice, stalled for 4.2 s, computed again.", "text")], CELLS),
        exact([("   At temperature 0, fp32 and native int8 give the same text whatever else", "text")], CELLS),
        exact([("   runs; with other types a near tie may depend on the batch (not in serial).", "text")], CELLS),
        exact([("   –: unknown.   n=: number of samples of a percentile.", "text")], CELLS),
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
        self.canvas = Canvas(theme, ascii_only=ascii_only, id="panel")
        self._offset = 0

    def compose(self) -> ComposeResult:
        yield self.canvas

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

    def action_move(self, height: int) -> None:
        """Scroll."""
        self._offset += height
        self._draw()

    def _draw(self) -> None:
        text = self._text
        room = max(1, self.app.size.height - 3)
        self._offset = visible_from(self._offset, len(text), room)
        shown = text[self._offset : self._offset + room]
        below = len(text) - self._offset - len(shown)
        more = f"   ↓ {below} more lines: j k" if below else ""
        width = min(CELLS, self.app.size.width - 2)
        lines = [exact([*line], width) for line in shown]
        lines.append(exact([(" esc closes", "key"), (more, "label")], width))
        self.canvas.styles.width = width + 2  # with its border
        self.canvas.styles.height = len(lines) + 2
        self.canvas.show(lines)
