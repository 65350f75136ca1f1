"""The event log: wall clock, mark and sentence of each entry, the newest at the bottom."""

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
"""Cells of the margin, the clock and the mark before the sentence."""

_MAX_ROWS = 4
"""Rows of one entry. Its numbers are at the end, so a long sentence is wrapped and not cut."""


def event_lines(entries: Sequence[LogEntry], width: int, height: int, title: str = "events") -> list[Line]:
    """Exactly ``height`` lines: a heading, then the last entries, each on as many rows as it needs."""
    if height <= 0:
        return []
    shown: list[Line] = []
    for entry in reversed(entries[-height:]):
        room = height - 1 - len(shown)
        if room <= 0:
            break
        shown = _entry_lines(entry, width, min(_MAX_ROWS, room)) + shown
    lines = [exact([(f" {title}", "label")], width), *shown]
    return lines + [blank(width)] * (height - len(lines))


def _entry_lines(entry: LogEntry, width: int, height: int) -> list[Line]:
    stamp = time.strftime("%H:%M:%S", time.localtime(entry.time))
    mark, style = _MARKS.get(entry.kind, ("·", "label"))
    loud = entry.kind in _LOUD
    text_style = "text" if loud else "label"
    first, *more = wrap(clean(entry.text), max(1, width - _BEFORE_TEXT), height) or [""]
    return [
        exact([(f" {stamp} ", "label"), (mark, style), (" ", "text"), (first, text_style)], width),
        *(exact([(" " * _BEFORE_TEXT, "text"), (text, text_style)], width) for text in more),
    ]
