"""Which request held which slot when: one row for each slot, one column for one second or more."""

from __future__ import annotations

from functools import lru_cache

from slotdeck.console.drawing.cells import UNKNOWN, Line, Span, blank, cell_width, clean, cut, exact
from slotdeck.console.state.time_series import SlotSample, TimeSeries
from slotdeck.engine.telemetry.frame import SlotState

SIGNS: dict[SlotState, str] = {
    "idle": " ", "decode": "━", "held": "■", "prefill": "▸", "swapped": "⇄", "preempted": "!"
}  # fmt: skip
_ORDER: tuple[SlotState, ...] = ("preempted", "swapped", "prefill", "held", "decode")
"""If a column has several states, the first of these is shown."""
LABEL_CELLS = 6
MIN_NAME = 6
"""Cells that a cut name needs to be recognisable."""
SPANS = (60, 120, 300, 600)


@lru_cache(maxsize=8)
def timeline_lines(series: TimeSeries, slots: int, width: int, height: int) -> tuple[Line, ...]:
    """Exactly ``height`` lines: a heading that explains the signs, then slots 0 to ``slots`` - 1 as far as they fit."""
    if height <= 0:
        return ()
    columns = max(1, width - LABEL_CELLS - 1)
    span = next((s for s in SPANS if s >= columns), SPANS[-1])
    heading: list[Span] = [(f" slots over {span // 60} min ", "label")]
    heading += [(f" {SIGNS[state]} {state}", state) for state in ("prefill", "decode", "held", "preempted", "swapped")]
    lines = [exact(heading, width)]
    if not series.samples:
        return tuple([*lines, exact([(f" {UNKNOWN}", "label")], width), *[blank(width)] * height][:height])
    grid = _grid(series, slots, span, columns)
    fit = height - 1 if slots <= height - 1 else height - 2
    for slot in range(max(0, min(slots, fit))):
        lines.append(exact([(f" {slot:>3}  ", "label"), *_row(grid[slot])], width))
    if slots > fit and len(lines) < height:
        lines.append(exact([(f"      {slots - max(0, fit)} more slots: z shows them all", "label")], width))
    return tuple((lines + [blank(width)] * height)[:height])


def _grid(series: TimeSeries, slots: int, span: int, columns: int) -> list[list[SlotSample | None]]:
    """What each column shows, for each slot."""
    begin = series.samples[-1].time + 0.001 - span
    grid: list[list[SlotSample | None]] = [[None] * columns for _ in range(slots)]
    before = -1
    for sample in series.samples:
        column = int((sample.time - begin) / span * columns)
        if not 0 <= column < columns:
            continue
        near = before >= 0 and column - before <= 2.5 * columns / span
        for filled in range(before + 1 if near and column > before else column, column + 1):
            for slot, held in sample.slots.items():
                if slot < slots:
                    grid[slot][filled] = _prior(grid[slot][filled], held)
        before = column
    return grid


def _prior(one: SlotSample | None, other: SlotSample) -> SlotSample:
    if one is None:
        return other
    return one if _ORDER.index(one.state) < _ORDER.index(other.state) else other


def _row(samples: list[SlotSample | None]) -> list[Span]:
    """Signs in the style of their state. A long decode of one request carries the name of its user."""
    spans: list[Span] = []
    at = 0
    while at < len(samples):
        held, end = samples[at], at + 1
        while end < len(samples) and _same(samples[end], held):
            end += 1
        length = end - at
        if held is None:
            spans.append((" " * length, "text"))
        else:
            name = clean(held.user or "")
            size = cell_width(name)
            sign = SIGNS[held.state]
            if held.state == "decode" and name and length >= min(size, MIN_NAME) + 2:
                name = cut(name, length - 2)
                spans += [(sign, "decode"), (name, "text"), (sign * (length - cell_width(name) - 1), "decode")]
            else:
                spans.append((sign * length, held.state))
        at = end
    return spans


def _same(one: SlotSample | None, other: SlotSample | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.state == other.state and one.request_id == other.request_id
