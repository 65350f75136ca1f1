"""The last minutes as plots: TTFT, ITL, speed, KV pool and OS swap, with marks where settings changed.

The plots are composed once a second: the lines of a series are kept until the next series.
"""

from __future__ import annotations

import time
from functools import lru_cache

from slotdeck.console.drawing import formats
from slotdeck.console.drawing.cells import UNKNOWN, Line, Span, blank, exact, left
from slotdeck.console.drawing.plot import Metric, column_rows, linear
from slotdeck.console.state.time_series import Sample, TimeSeries

LABEL_CELLS = 16
SPANS = (60, 120, 300, 600)
"""Seconds that the plots may show. The shortest span that holds all samples is used."""
MAX_ROWS = 4
"""Rows of one plot."""


def _percent(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.0%}"


def _moved(value: float | None) -> str:
    text = formats.byte_count(value)
    return text if text in ("0", UNKNOWN) else f"{text}/s"


METRICS: tuple[Metric[Sample], ...] = (
    Metric("TTFT p95", lambda sample: sample.ttft_p95, formats.seconds, "prefill"),
    Metric("ITL p95", lambda sample: sample.itl_p95, formats.gap, "decode"),
    Metric("tok/s", lambda sample: sample.generated, formats.rate, "decode"),
    Metric("KV live", lambda sample: sample.pool_share, _percent, "live", 1.0),
    Metric("OS swap", lambda sample: sample.os_swap, _moved, "critical"),
)


@lru_cache(maxsize=8)
def plot_lines(series: TimeSeries, width: int, height: int) -> tuple[Line, ...]:
    """Exactly ``height`` lines: a heading, the plots, and below them marks of changes and preemptions."""
    if height <= 0:
        return ()
    samples = series.samples
    if not samples:
        return (exact([(f" plots  {UNKNOWN}", "label")], width), *[blank(width)] * (height - 1))
    now = samples[-1].time
    span = next((s for s in SPANS if now - samples[0].time < s), SPANS[-1])
    columns = max(1, width - LABEL_CELLS - 1)
    lines = [_heading(series, now, span, width)]
    bins = _bins(series, now, span, columns)
    marked = [any(start <= at < end for at, _ in series.changes) for start, end in _edges(now, span, columns)]
    plot_height = max(1, min(MAX_ROWS, (height - 2) // len(METRICS)))
    for metric in METRICS:
        lines += _plot(metric, bins, marked, width, plot_height)
    lines = lines[: height - 1]
    lines.append(_marks(bins, marked, width))
    return tuple((lines + [blank(width)] * height)[:height])


def _heading(series: TimeSeries, now: float, span: int, width: int) -> Line:
    shown = [(at, text) for at, text in series.changes if at >= now - span]
    spans: list[Span] = [(f" last {span // 60} min ", "label")]
    if shown:
        at, text = shown[-1]
        clock = time.strftime("%H:%M:%S", time.localtime(at))
        spans += [(" ± ", "key"), (f"{text} ", "text"), (clock, "label")]
    return exact(spans, width)


def _edges(now: float, span: int, columns: int) -> list[tuple[float, float]]:
    # The newest second belongs to the last column.
    begin = now + 0.001 - span
    return [(begin + span * i / columns, begin + span * (i + 1) / columns) for i in range(columns)]


def _bins(series: TimeSeries, now: float, span: int, columns: int) -> list[list[Sample]]:
    """The samples of each column. Columns that fall between two samples show the later one."""
    bins: list[list[Sample]] = [[] for _ in range(columns)]
    begin = now + 0.001 - span
    before = -1
    for sample in series.samples:
        column = int((sample.time - begin) / span * columns)
        if not 0 <= column < columns:
            continue
        if bins[column]:
            bins[column].append(sample)
        else:
            # Columns between two samples of successive seconds show the later one.
            first = before + 1 if before >= 0 and column - before <= 2.5 * columns / span else column
            for filled in range(first, column + 1):
                bins[filled] = [sample]
        before = column
    return bins


def _plot(metric: Metric[Sample], bins: list[list[Sample]], marked: list[bool], width: int, height: int) -> list[Line]:
    values = [max(metric.known(found), default=None) for found in bins]
    newest = next((value for found in reversed(bins) if found for value in [metric.value(found[-1])]), None)
    largest = max((value for value in values if value is not None), default=0.0)
    top = metric.top(largest)
    labels: list[list[Span]] = [
        [(f" {left(metric.name, 9)}", "label"), (f"{metric.form(newest):>6}", "label" if newest is None else "value")]
    ]
    if height > 1:
        labels.append([(f" {left('max ' + metric.form(top), LABEL_CELLS - 1)}", "rule")])
    lines = []
    for number, row in enumerate(column_rows(linear(values, top), height)):
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
        lines.append(exact(spans, width))
    return lines


def _marks(bins: list[list[Sample]], marked: list[bool], width: int) -> Line:
    """The line below the plots: where a setting changed and where a request was preempted."""
    spans: list[Span] = [(" ± ", "key"), ("set ", "label"), ("! ", "preempted"), ("preempt", "label")]
    for found, changed in zip(bins, marked, strict=True):
        if changed:
            spans.append(("±", "key"))
        elif any(sample.preempted for sample in found):
            spans.append(("!", "preempted"))
        else:
            spans.append((" ", "text"))
    return exact(spans, width)
