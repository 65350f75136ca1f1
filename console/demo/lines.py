"""A demonstration as lines: progress, the rows of one group side by side as plots, the table. Pure."""

from __future__ import annotations

from slotdeck.console.demo.result import Result
from slotdeck.console.demo.sentences import comparison
from slotdeck.console.demo.state import DemoState, Sample
from slotdeck.console.drawing import formats
from slotdeck.console.drawing.cells import Line, Span, blank, clean, exact, left, right, wrap
from slotdeck.console.drawing.glyphs import progress
from slotdeck.console.drawing.plot import Metric, column_rows, linear

LABEL_CELLS = 11
PLOT_ROWS = 2
NAME_CELLS = 16
BAR_CELLS = 20

METRICS: tuple[Metric[Sample], ...] = (
    Metric("tok/s", lambda sample: sample.tokens, formats.rate, "decode"),
    Metric("TTFT", lambda sample: sample.ttft, formats.seconds, "prefill"),
    Metric("ITL", lambda sample: sample.gap, formats.gap, "live"),
)


def plots_rows(height: int = PLOT_ROWS) -> int:
    """Rows of the plots with their heading, each ``height`` rows high."""
    return 1 + height * len(METRICS)


def progress_line(state: DemoState, cells: int) -> Line:
    """How far it is and how long it still takes."""
    if state.ended:
        style = {"done": "ok", "stopped": "warn", "failed": "critical"}[state.ended]
        return exact([(f" {clean(state.end_text)}", style)], cells)
    full, empty = progress(round(state.share_done * 1000), 1000, BAR_CELLS)
    number = 0 if state.at is None else state.at + 1
    spans: list[Span] = [
        (" ", "text"), (full, "live"), (empty, "free"), (f" {state.share_done:.0%}", "value"),
        (f"  row {number} of {len(state.rows)}", "label"), (f"  {formats.clock(state.seconds_left)} left", "value"),
        (f"  {clean(state.status)}", "text"),
    ]  # fmt: skip
    return exact(spans, cells)


def groups(state: DemoState) -> list[tuple[str, list[int]]]:
    """Rows by group, in order."""
    found: dict[str, list[int]] = {}
    for index, row in enumerate(state.rows):
        found.setdefault(row.group, []).append(index)
    return list(found.items())


def plot_block(state: DemoState, shown: int, cells: int, height: int = PLOT_ROWS) -> list[Line]:
    """The rows of the group of row ``shown`` beside one another, on the same scales: :func:`plots_rows` lines."""
    members = next((rows for _, rows in groups(state) if shown in rows), [shown])
    number = len(members)
    size = (cells - (number - 1)) // number
    samples = [sample for index in members for sample in state.samples[index]]
    tops = [metric.top(max(metric.known(samples), default=0.0)) for metric in METRICS]
    columns = [_column(state, index, size, tops, height) for index in members]
    lines = []
    for parts in zip(*columns, strict=True):
        spans: list[Span] = []
        for part in parts:
            spans += [("│", "rule")] if spans else []
            spans += part
        lines.append(exact(spans, cells))
    return lines


def _column(state: DemoState, index: int, size: int, tops: list[float], height: int) -> list[Line]:
    row, samples = state.rows[index], state.samples[index]
    result = state.results[index]
    word, style = ("runs", "decode") if state.at == index else ("done", "label") if state.done(index) else ("", "label")
    lines = [exact([(f" {clean(row.name)}", "title"), (f"  {word}", style)], size)]
    places = max(1, size - LABEL_CELLS - 1)
    figures = (
        None if result is None else result.tokens_per_second,
        None if result is None else result.ttft_p95,
        None if result is None else result.itl_p95,
    )
    for metric, top, figure in zip(METRICS, tops, figures, strict=True):
        values: list[float | None] = [None] * places
        for sample in samples:
            value = metric.value(sample)
            end = min(places, max(1, round(sample.at / row.seconds * places)))
            begin = min(end - 1, max(0, round((sample.at - 1) / row.seconds * places)))
            for place in range(begin, end):
                if value is not None:
                    values[place] = max(value, values[place] or 0.0)
        plotted = column_rows(linear(values, top), height)
        labels = (f"{metric.name:<5}{metric.form(figure):>5}", f"to {metric.form(top)}", *[""] * (height - 2))
        for number, (label, plot) in enumerate(zip(labels, plotted, strict=True)):
            spans: list[Span] = [
                (f" {left(label, LABEL_CELLS - 1)}", "rule" if number else "value"),
                (plot, metric.style),
            ]
            lines.append(exact(spans, size))
    return lines


# ---------------------------------------------------------------------- the table


def table_header(cells: int) -> Line:
    """What the columns are."""
    heads = ("TTFT p50", 8), ("p95", 7), ("max", 7), ("ITL p50", 8), ("p95", 6), ("max", 6), ("wait", 7)
    counts = ("503", 4), ("pre", 4), ("tok/s", 6)
    text = " " * (NAME_CELLS + 1) + "".join(right(word, size) for word, size in (*heads, *counts))
    return exact([(text, "label")], cells)


def row_line(state: DemoState, index: int, cells: int, *, selected: bool = False) -> Line:
    """One row of the table."""
    row, result = state.rows[index], state.results[index] or Result()
    name = left(f"{'›' if selected else ' '} {clean(row.name)}", NAME_CELLS)
    bound = "≥" if result.open else ""
    spans: list[Span] = [(" ", "text"), (name, "title" if selected or state.at == index else "text")]

    def put(text: str, size: int, style: str = "value") -> None:
        spans.append((right(text, size), "label" if text.endswith("–") else style))

    def time(value: float | None) -> str:
        return f"{bound if value is not None else ''}{formats.seconds(value)}"

    for value, size in ((result.ttft_p50, 8), (result.ttft_p95, 7), (result.ttft_max, 7)):
        put(time(value), size)
    for value, size in ((result.itl_p50, 8), (result.itl_p95, 6), (result.itl_max, 6)):
        put(formats.gap(value), size)
    put(time(result.wait_p95), 7)
    known = state.results[index] is not None
    put(formats.count(result.rejected if known else None), 4, "warn" if result.rejected else "value")
    put(formats.count(result.preemptions), 4, "preempted" if result.preemptions else "value")
    put(formats.rate(result.tokens_per_second), 6)
    return exact(spans, cells)


def table_rows(state: DemoState) -> int:
    """Rows of the whole table with its header."""
    return 1 + len(groups(state)) + len(state.rows)


def table_lines(state: DemoState, cells: int, rows: int, selected: int | None) -> list[Line]:
    """The table with a heading for each group; when it is longer than ``rows``, the part around ``selected``."""
    lines: list[Line] = []
    place = 0
    for name, members in groups(state):
        lines.append(exact([(f" {clean(name)}", "title")], cells))
        for index in members:
            if index == selected:
                place = len(lines)
            lines.append(row_line(state, index, cells, selected=index == selected))
    room = rows - 1
    start = max(0, min(place - room // 2, len(lines) - room))
    shown = lines[start : start + room]
    return [table_header(cells), *shown, *[blank(cells)] * (room - len(shown))]


def sentence_lines(state: DemoState, index: int | None, cells: int, rows: int) -> list[Line]:
    """What happened in a row, over at most ``rows`` rows."""
    result = state.results[index] if index is not None and index < len(state.results) else None
    text = result.sentence if result is not None else ""
    return [exact([(f" {part}", "text")], cells) for part in wrap(clean_long(text), cells - 1, rows)]


def clean_long(text: str) -> str:
    """A sentence of our own: longer than a label may be."""
    return " ".join(clean(word) for word in text.split(" "))


def report_lines(state: DemoState, cells: int) -> list[Line]:
    """Everything: each row with its sentence, each group with what its last row got beside its first."""
    engine = ", ".join(str(value) for value in state.engine.values() if value is not None)
    lines = [exact([(" slotdeck demo  ", "title"), (clean(engine), "label")], cells), table_header(cells)]
    for name, members in groups(state):
        lines += [blank(cells), exact([(f" {clean(name)}", "title")], cells)]
        for index in members:
            lines.append(row_line(state, index, cells))
            said = sentence_lines(state, index, cells - 4, 4)
            lines += [exact([("   ", "text"), *line], cells) for line in said]
        done = [index for index in members if state.done(index)]
        results = [state.results[index] for index in done]
        compared = comparison([state.rows[index] for index in done], results) if len(done) > 1 else None
        if compared:
            texts = wrap(clean_long(compared), cells - 3, 2)
            lines += [exact([(f" {' ' if number else '→'} {text}", "ok")], cells) for number, text in enumerate(texts)]
    if any(result is not None and result.open for result in state.results):
        lines += [blank(cells), exact([(" ≥: some had no first token yet when the row ended", "label")], cells)]
    return lines
