"""The live picture of `slotdeck demo` on a terminal: progress, plots side by side, the table. Gone at the end."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from slotdeck.console.demo.lines import (
    PLOT_ROWS,
    plot_block,
    plots_rows,
    progress_line,
    sentence_lines,
    table_lines,
    table_rows,
)
from slotdeck.console.demo.state import DemoState
from slotdeck.console.drawing.cells import Line
from slotdeck.console.drawing.glyphs import to_ascii
from slotdeck.console.terminal.environment import ascii_wanted
from slotdeck.console.terminal.themes import load_themes

SENTENCE_ROWS = 2
MIN_TABLE_ROWS = 4
MAX_PLOT_ROWS = 5
TALL = 28


def demo_lines(state: DemoState, selected: int | None, cells: int, rows: int) -> list[Line]:
    """Exactly the parts that fit: progress, plots of the selected row's group, table, what happened in that row."""
    lines = [progress_line(state, cells)]
    if selected is None:
        return lines
    room_below = SENTENCE_ROWS + (rows >= TALL)
    said = sentence_lines(state, selected, cells, room_below)
    spare = rows - 1 - room_below
    if spare >= plots_rows() + MIN_TABLE_ROWS:
        # Half of a tall screen is for the plots, what the table does not need too.
        room = max(spare - table_rows(state), spare // 2)
        height = max(
            height
            for height in range(PLOT_ROWS, MAX_PLOT_ROWS + 1)
            if height == PLOT_ROWS or plots_rows(height) <= room
        )
        lines += plot_block(state, selected, cells, height)
    table = rows - len(lines) - room_below
    if table > 1:
        lines += table_lines(state, cells, min(table, table_rows(state)), selected)
    return [*lines, *said][:rows]


def row_of_interest(state: DemoState) -> int | None:
    """The row that runs, else the last one with numbers."""
    if state.at is not None:
        return state.at
    known = [index for index, result in enumerate(state.results) if result is not None]
    return known[-1] if known else (0 if state.rows else None)


class Picture:
    """Renewed by :meth:`draw`; the terminal is as before when it is left."""

    def __init__(self, state: DemoState) -> None:
        self._state = state
        self._screen = Console(stderr=True, highlight=False, markup=False)
        self._live = Live(console=self._screen, auto_refresh=False, transient=True, screen=True)
        self._ascii = ascii_wanted()
        themes, _ = load_themes()
        self._theme = next(iter(themes.values()))

    def __enter__(self) -> Picture:
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._live.stop()

    def draw(self) -> None:
        """Bring it up to the state."""
        cells, rows = self._screen.size
        selected = row_of_interest(self._state)
        lines = demo_lines(self._state, selected, cells, rows - 1)
        texts = [
            Text.assemble(*((to_ascii(text) if self._ascii else text, self._theme.styles[name]) for text, name in line))
            for line in lines
        ]
        self._live.update(Group(*texts), refresh=True)
