"""The last minutes as plots: TTFT, ITL, speed, KV pool and OS swap under one another, changes of settings marked.

Composed once a second: the lines of a trace are kept until there is another one.
"""

from __future__ import annotations

import time
from functools import lru_cache

from slotdeck.console.drawing import formats
from slotdeck.console.drawing.cells import UNKNOWN, Line, Span, blank, exact, left
from slotdeck.console.drawing.plot import Metric, column_rows, linear
from slotdeck.console.state.time_series import Second, Trace

LABEL_CELLS = 16
SPANS = (60, 120, 300, 600)
"""Seconds that the plots may show: the shortest that holds all that is known."""
MAX_ROWS = 4
"""Of one plot."""


def _percent(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.0%}"


def _moved(value: float | None) -> str:
    text = formats.byte_count(value)
    return text if text in ("0", UNKNOWN) else f"{text}/s"


METRICS: tuple[Metric[Second], ...] = (
    Metric("TTFT p95", lambda second: second.ttft_p95, formats.seconds, "prefill"),
    Metric("ITL p95", lambda second: second.itl_p95, formats.gap, "decode"),
    Metric("tok/s", lambda second: second.generated, formats.rate, "decode"),
    Metric("KV live", lambda second: second.pool_share, _percent, "live", 1.0),
    Metric("OS swap", lambda second: second.os_swap, _moved, "critical"),
)


@lru_cache(maxsize=8)
def plot_lines(trace: Trace, cells: int, rows: int) -> tuple[Line, ...]:
    """Exactly ``rows`` rows: a heading, the plots, and the marks of changed settings and preemptions below them."""
    if rows <= 0:
        return ()
    seconds = trace.seconds
    if not seconds:
        return (exact([(f" plots  {UNKNOWN}", "label")], cells), *[blank(cells)] * (rows - 1))
    now = seconds[-1].time
    span = next((s for s in SPANS if now - seconds[0].time < s), SPANS[-1])
    columns = max(1, cells - LABEL_CELLS - 1)
    lines = [_heading(trace, now, span, cells)]
    bins = _bins(trace, now, span, columns)
    marked = [any(start <= at < end for at, _ in trace.changes) for start, end in _edges(now, span, columns)]
    height = max(1, min(MAX_ROWS, (rows - 2) // len(METRICS)))
    for metric in METRICS:
        lines += _plot(metric, bins, marked, cells, height)
    lines = lines[: rows - 1]
    lines.append(_marks(bins, marked, cells))
    return tuple((lines + [blank(cells)] * rows)[:rows])


def _heading(trace: Trace, now: float, span: int, cells: int) -> Line:
    shown = [(at, text) for at, text in trace.changes if at >= now - span]
    spans: list[Span] = [(f" last {span // 60} min ", "label")]
    if shown:
        at, text = shown[-1]
        clock = time.strftime("%H:%M:%S", time.localtime(at))
        spans += [(" ± ", "key"), (f"{text} ", "text"), (clock, "label")]
    return exact(spans, cells)


def _edges(now: float, span: int, columns: int) -> list[tuple[float, float]]:
    # The newest second belongs to the last column.
    begin = now + 0.001 - span
    return [(begin + span * i / columns, begin + span * (i + 1) / columns) for i in range(columns)]


def _bins(trace: Trace, now: float, span: int, columns: int) -> list[list[Second]]:
    """The samples of each column. A column narrower than the samples' distance shares its neighbour's."""
    bins: list[list[Second]] = [[] for _ in range(columns)]
    begin = now + 0.001 - span
    before = -1
    for second in trace.seconds:
        column = int((second.time - begin) / span * columns)
        if not 0 <= column < columns:
            continue
        if bins[column]:
            bins[column].append(second)
        else:
            # Columns between two samples of successive seconds show the later one.
            first = before + 1 if before >= 0 and column - before <= 2.5 * columns / span else column
            for filled in range(first, column + 1):
                bins[filled] = [second]
        before = column
    return bins


def _plot(metric: Metric[Second], bins: list[list[Second]], marked: list[bool], cells: int, rows: int) -> list[Line]:
    values = [max(metric.known(found), default=None) for found in bins]
    newest = next((value for found in reversed(bins) if found for value in [metric.value(found[-1])]), None)
    largest = max((value for value in values if value is not None), default=0.0)
    top = metric.top(largest)
    labels: list[list[Span]] = [
        [(f" {left(metric.name, 9)}", "label"), (f"{metric.form(newest):>6}", "label" if newest is None else "value")]
    ]
    if rows > 1:
        labels.append([(f" {left('to ' + metric.form(top), LABEL_CELLS - 1)}", "rule")])
    lines = []
    for number, row in enumerate(column_rows(linear(values, top), rows)):
        label = labels[number] if number < len(labels) else [(" " * LABEL_CELLS, "text")]
        spans: list[Span] = list(exact(label, LABEL_CELLS))
        at = 0
        while at < len(row):
            end = at + 1
            if marked[at] and row[at] == " ":
                spans.append(("┊", "key"))
            else:
                while end < len(row) and not (marked[end] and row[end] == " "):
                    end += 1
                spans.append((row[at:end], metric.style if largest > 0 else "rule"))
            at = end
        lines.append(exact(spans, cells))
    return lines


def _marks(bins: list[list[Second]], marked: list[bool], cells: int) -> Line:
    """Below the plots: where a setting changed and where somebody was preempted."""
    spans: list[Span] = [(" ± ", "key"), ("set ", "label"), ("! ", "preempted"), ("preempt", "label")]
    for found, changed in zip(bins, marked, strict=True):
        if changed:
            spans.append(("±", "key"))
        elif any(second.preempted for second in found):
            spans.append(("!", "preempted"))
        else:
            spans.append((" ", "text"))
    return exact(spans, cells)
