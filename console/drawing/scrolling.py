"""Selecting and scrolling, for every list and every long text of the console. Pure."""

from __future__ import annotations

from slotdeck.console.drawing.cells import Line, exact


def moved(selected: int, step: int, count: int) -> int:
    """The selected place after ``step`` places down, or up if it is negative. It stops at both ends."""
    return max(0, min(selected + step, count - 1))


def visible_from(offset: int, count: int, height: int, keep: range | None = None) -> int:
    """The first line to show of ``count`` lines in ``height`` rows.

    It is the place nearest to ``offset`` at which the rows are filled and the lines of ``keep`` are visible. If those
    are more lines than rows, their first ones are visible.
    """
    if keep and height > 0:
        offset = max(offset, keep.stop - height)
        offset = min(offset, keep.start)
    return max(0, min(offset, count - height))


def scrolled(lines: list[Line], offset: int, height: int, width: int, keys: str) -> list[Line]:
    """At most ``height`` of the lines, from ``offset`` on. The last row says how many more follow, and which keys
    show them.
    """
    visible = lines[offset : offset + height]
    hidden = len(lines) - offset - len(visible)
    if hidden > 0 and visible:
        visible[-1] = exact([(f" ↓ {hidden + 1} more lines", "key"), (f"  {keys}", "label")], width)
    return visible
