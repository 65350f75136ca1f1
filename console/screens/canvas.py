"""The only widget that paints. It uses Textual's Line API, without layout and markup.

A row that equals the painted one costs a comparison; any other row is drawn as one strip.
"""

from __future__ import annotations

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from slotdeck.console.drawing.cells import Line, blank, exact, line_width
from slotdeck.console.drawing.glyphs import to_ascii
from slotdeck.console.terminal.themes import ConsoleTheme


class Canvas(Widget, can_focus=False):
    """Shows lines given to :meth:`show`, clipped and padded to its size."""

    def __init__(self, theme: ConsoleTheme, *, ascii_only: bool = False, id: str | None = None) -> None:
        super().__init__(id=id)
        self._theme = theme
        self._ascii = ascii_only
        self._lines: list[Line] = []

    @property
    def lines(self) -> list[Line]:
        """The lines that are shown."""
        return list(self._lines)

    def show(self, lines: list[Line], *, dimmed: int = 0) -> int:
        """Paint ``lines`` and return how many rows changed. The first ``dimmed`` rows are out of date."""
        lines = [(*line, ("", "dimmed")) for line in lines[:dimmed]] + lines[dimmed:]
        before = self._lines
        self._lines = lines
        longest = max(len(before), len(lines))
        changed = [
            y for y in range(longest) if y >= len(before) or y >= len(lines) or before[y] != lines[y]
        ]  # fmt: skip
        if changed:
            self.refresh(*(Region(0, y, self.size.width, 1) for y in changed))
        return len(changed)

    def use_theme(self, theme: ConsoleTheme) -> None:
        """Paint everything again in another theme."""
        self._theme = theme
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """One row as a strip of exactly the width of the widget."""
        width = self.size.width
        line = self._lines[y] if y < len(self._lines) else blank(width)
        dimmed = bool(line) and line[-1] == ("", "dimmed")
        if line_width(line) != width:
            line = exact(line, width)
        styles: dict[str, Style] = self._theme.styles
        segments = [
            Segment(
                to_ascii(text) if self._ascii else text,
                self._theme.dimmed if dimmed and name not in ("banner", "alert") else styles[name],
            )
            for text, name in line
            if text
        ]
        return Strip(segments, width)
