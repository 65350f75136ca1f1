"""The event log: the newest entries at the bottom, wall clock, mark, sentence."""

from __future__ import annotations

import time
from collections.abc import Sequence

from slotdeck.console.drawing.cells import Line, Span, blank, clean, exact, wrap
from slotdeck.console.state.store import LogEntry

_MARKS: dict[str, Span] = {
    "admitted": ("▸", "prefill"),
    "first_token": ("●", "decode"),
    "preempted": ("!", "preempted"),
    "resumed": ("▸", "prefill"),
    "finished": ("✓", "label"),
    "cancelled": ("✗", "label"),
    "failed": ("✗", "critical"),
    "rejected": ("✗", "warn"),
    "too_long": ("✗", "warn"),
    "invalid": ("✗", "warn"),
    "setting_changed": ("±", "key"),
    "compared": ("±", "key"),
    "engine_fault": ("✗", "critical"),
    "draining": ("↓", "warn"),
    "restarted": ("↑", "warn"),
    "note": ("·", "label"),
}
_LOUD = {
    "preempted",
    "failed",
    "rejected",
    "too_long",
    "invalid",
    "setting_changed",
    "engine_fault",
    "draining",
    "restarted",
}


_BEFORE_TEXT = 12
"""Cells of margin, clock and mark before the sentence."""

_MAX_ROWS = 4
"""Of one entry: its numbers stand at the end, so a sentence goes on below before it is cut."""


def event_lines(entries: Sequence[LogEntry], cells: int, rows: int, title: str = "events") -> list[Line]:
    """Exactly ``rows`` rows: a heading, then the last entries, each on as many rows as it needs."""
    if rows <= 0:
        return []
    shown: list[Line] = []
    for entry in reversed(entries[-rows:]):
        room = rows - 1 - len(shown)
        if room <= 0:
            break
        shown = _entry_lines(entry, cells, min(_MAX_ROWS, room)) + shown
    lines = [exact([(f" {title}", "label")], cells), *shown]
    return lines + [blank(cells)] * (rows - len(lines))


def _entry_lines(entry: LogEntry, cells: int, rows: int) -> list[Line]:
    stamp = time.strftime("%H:%M:%S", time.localtime(entry.time))
    mark, style = _MARKS.get(entry.kind, ("·", "label"))
    loud = entry.kind in _LOUD
    text_style = "text" if loud else "label"
    first, *more = wrap(clean(entry.text), max(1, cells - _BEFORE_TEXT), rows) or [""]
    return [
        exact([(f" {stamp} ", "label"), (mark, style), (" ", "text"), (first, text_style)], cells),
        *(exact([(" " * _BEFORE_TEXT, "text"), (text, text_style)], cells) for text in more),
    ]
