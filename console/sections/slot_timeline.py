"""Who held which slot when: one row for each slot, one column for a second or more."""

from __future__ import annotations

from functools import lru_cache

from slotdeck.console.drawing.cells import UNKNOWN, Line, Span, blank, clean, cut, exact, width
from slotdeck.console.state.time_series import Mark, Trace
from slotdeck.engine.telemetry.frame import SlotState

SIGNS: dict[SlotState, str] = {
    "idle": " ", "decode": "━", "held": "■", "prefill": "▸", "swapped": "⇄", "preempted": "!"
}  # fmt: skip
_ORDER: tuple[SlotState, ...] = ("preempted", "swapped", "prefill", "held", "decode")
"""Of the states in one column the first of these is shown."""
LABEL_CELLS = 6
MIN_NAME = 6
"""Cells from which on a cut name still says something."""
SPANS = (60, 120, 300, 600)


@lru_cache(maxsize=8)
def timeline_lines(trace: Trace, slots: int, cells: int, rows: int) -> tuple[Line, ...]:
    """Exactly ``rows`` rows: a heading that explains the signs, then slots 0 to ``slots`` - 1 as far as they fit."""
    if rows <= 0:
        return ()
    columns = max(1, cells - LABEL_CELLS - 1)
    span = next((s for s in SPANS if s >= columns), SPANS[-1])
    heading: list[Span] = [(f" slots over {span // 60} min ", "label")]
    heading += [(f" {SIGNS[state]} {state}", state) for state in ("prefill", "decode", "held", "preempted", "swapped")]
    lines = [exact(heading, cells)]
    if not trace.seconds:
        return tuple([*lines, exact([(f" {UNKNOWN}", "label")], cells), *[blank(cells)] * rows][:rows])
    grid = _grid(trace, slots, span, columns)
    fit = rows - 1 if slots <= rows - 1 else rows - 2
    for slot in range(max(0, min(slots, fit))):
        lines.append(exact([(f" {slot:>3}  ", "label"), *_row(grid[slot])], cells))
    if slots > fit and len(lines) < rows:
        lines.append(exact([(f"      {slots - max(0, fit)} more slots: z gives them room", "label")], cells))
    return tuple((lines + [blank(cells)] * rows)[:rows])


def _grid(trace: Trace, slots: int, span: int, columns: int) -> list[list[Mark | None]]:
    """For each slot what each column shows."""
    begin = trace.seconds[-1].time + 0.001 - span
    grid: list[list[Mark | None]] = [[None] * columns for _ in range(slots)]
    before = -1
    for second in trace.seconds:
        column = int((second.time - begin) / span * columns)
        if not 0 <= column < columns:
            continue
        near = before >= 0 and column - before <= 2.5 * columns / span
        for filled in range(before + 1 if near and column > before else column, column + 1):
            for slot, mark in second.slots.items():
                if slot < slots:
                    grid[slot][filled] = _louder(grid[slot][filled], mark)
        before = column
    return grid


def _louder(one: Mark | None, other: Mark) -> Mark:
    if one is None:
        return other
    return one if _ORDER.index(one.state) < _ORDER.index(other.state) else other


def _row(marks: list[Mark | None]) -> list[Span]:
    """Signs in the style of their state; a long stretch of one request's decode carries its user's name."""
    spans: list[Span] = []
    at = 0
    while at < len(marks):
        mark, end = marks[at], at + 1
        while end < len(marks) and _same(marks[end], mark):
            end += 1
        length = end - at
        if mark is None:
            spans.append((" " * length, "text"))
        else:
            name = clean(mark.user or "")
            size = width(name)
            sign = SIGNS[mark.state]
            if mark.state == "decode" and name and length >= min(size, MIN_NAME) + 2:
                name = cut(name, length - 2)
                spans += [(sign, "decode"), (name, "text"), (sign * (length - width(name) - 1), "decode")]
            else:
                spans.append((sign * length, mark.state))
        at = end
    return spans


def _same(one: Mark | None, other: Mark | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.state == other.state and one.request_id == other.request_id
