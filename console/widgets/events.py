"""The event log: the newest entries at the bottom, wall clock, mark, sentence."""

from __future__ import annotations

import time
from collections.abc import Sequence

from console.store import LogEntry
from console.widgets.cells import Line, Span, blank, clean, exact

_MARKS: dict[str, Span] = {
    "admitted": ("▸", "prefill"),
    "first_token": ("●", "decode"),
    "preempted": ("!", "preempted"),
    "resumed": ("▸", "prefill"),
    "finished": ("✓", "label"),
    "cancelled": ("✗", "label"),
    "failed": ("✗", "critical"),
    "rejected": ("✗", "warn"),
    "setting_changed": ("±", "key"),
    "engine_fault": ("✗", "critical"),
    "draining": ("↓", "warn"),
    "restarted": ("↑", "warn"),
    "note": ("·", "label"),
}
_LOUD = {"preempted", "failed", "rejected", "setting_changed", "engine_fault", "draining", "restarted"}


def event_lines(entries: Sequence[LogEntry], cells: int, rows: int, title: str = "events") -> list[Line]:
    """Exactly ``rows`` rows: a heading, then the last entries."""
    if rows <= 0:
        return []
    lines = [exact([(f" {title}", "label")], cells)]
    for entry in entries[-(rows - 1) :] if rows > 1 else ():
        stamp = time.strftime("%H:%M:%S", time.localtime(entry.time))
        mark, style = _MARKS.get(entry.kind, ("·", "label"))
        text_style = "text" if entry.kind in _LOUD else "label"
        lines.append(
            exact([(f" {stamp} ", "label"), (mark, style), (" ", "text"), (clean(entry.text), text_style)], cells)
        )
    return lines + [blank(cells)] * (rows - len(lines))
