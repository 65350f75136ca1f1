"""The strip below the History page: how busy the engine was, what happened, and which instant is shown."""

from __future__ import annotations

import time
from collections.abc import Sequence

from slotdeck.console.drawing.cells import Line, Span, cell_width, exact
from slotdeck.console.drawing.glyphs import SPARK
from slotdeck.engine.telemetry.frame import FrameEvent
from slotdeck.engine.telemetry.history.schema import ChunkSummary

ROWS = 3

_WEIGHT = {"engine_fault": 4, "failed": 3, "preempted": 2, "rejected": 1, "setting_changed": 0}
_MARKS: dict[str, Span] = {
    "engine_fault": ("✗", "critical"),
    "failed": ("✗", "critical"),
    "preempted": ("!", "preempted"),
    "rejected": ("✗", "warn"),
    "setting_changed": ("±", "key"),
}
"""If a cell has several events, the most serious one is shown."""


def strip_lines(
    chunks: Sequence[ChunkSummary], events: Sequence[FrameEvent], *, start: float, seconds: float, at: float, width: int
) -> list[Line]:
    """Three lines: load as bars (blank where nothing was recorded), marks of events, and the instant ``at``."""
    first, last = _clock(start, seconds), _clock(start + seconds, seconds)
    left, right = len(first) + 2, len(last) + 2
    room = width - left - right
    if room < 10:
        return [exact([], width)] * ROWS
    bars: list[int | None] = [None] * room
    for chunk in chunks:
        busy = (chunk.running or 0) + (chunk.waiting or 0)
        for cell in range(
            max(0, int((chunk.first_time - start) / seconds * room)),
            min(room, int((chunk.last_time - start) / seconds * room) + 1),
        ):
            bars[cell] = max(bars[cell] or 0, busy)
    top = max((bar for bar in bars if bar), default=1)
    text = "".join(" " if bar is None else SPARK[min(7, bar * 7 // top)] for bar in bars)
    marks: dict[int, str] = {}
    for event in events:
        cell = int((event.time - start) / seconds * room)
        if 0 <= cell < room and event.kind in _WEIGHT:
            marks[cell] = max(marks.get(cell, event.kind), event.kind, key=lambda kind: _WEIGHT[kind])
    place = max(0, min(room - 1, int((at - start) / seconds * room)))
    return [
        exact([(f" {first} ", "label"), (text, "decode"), (f" {last} ", "label")], width),
        exact([(" " * left, "text"), *(_MARKS.get(marks.get(c, ""), (" ", "text")) for c in range(room))], width),
        _cursor(left + place, f"{time.strftime('%H:%M:%S', time.localtime(at))}  max {top}", width),
    ]


def _cursor(place: int, label: str, width: int) -> Line:
    """An arrow below the instant, with its label on the side where there is room."""
    if place + 2 + cell_width(label) < width:
        return exact([(" " * place, "text"), ("↑ ", "key"), (label, "label")], width)
    return exact([(" " * (place - cell_width(label) - 1), "text"), (f"{label} ", "label"), ("↑", "key")], width)


def _clock(at: float, seconds: float) -> str:
    return time.strftime("%H:%M:%S" if seconds < 3600 else "%H:%M", time.localtime(at))
