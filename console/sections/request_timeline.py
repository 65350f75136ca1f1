"""One request over time: a sentence, its phases as a bar, its gaps as a plot, its prefill chunks."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise

from slotdeck.console.drawing import formats
from slotdeck.console.drawing.cells import (
    UNKNOWN,
    Line,
    Span,
    blank,
    cell_width,
    clean,
    exact,
    left,
    line_width,
    right,
    wrap,
)
from slotdeck.console.drawing.plot import column_rows, logarithmic
from slotdeck.engine.telemetry.frame import LimitInfo, PoolInfo
from slotdeck.engine.telemetry.requests.detail import CAUSE_LETTERS, PrefillChunk, RequestDetail

Phase = tuple[str, float, float]
"""Name, and seconds from arrival at which it begins and ends."""

PHASES: dict[str, tuple[str, str]] = {
    "preprocessing": ("·", "label"),
    "queue": ("░", "label"),
    "prefill": ("▸", "prefill"),
    "decode": ("━", "decode"),
    "preempted": ("!", "preempted"),
    "swapped": ("⇄", "swapped"),
    "again": ("▸", "warn"),
}
"""Sign and style of each phase. ``again`` is the prefill of what a preemption threw away."""

MIN_SHOWN = 0.005
"""Phases with fewer seconds in total are not listed."""

BETWEEN_STEPS = 0.02
"""Phases with fewer seconds are only the time between two steps; they are added to the phase before."""

_BEFORE_CAUSE = 18
"""Cells before the text in the line of a long gap."""

_CAUSE_STYLES: dict[str, str] = {
    ".": "decode",
    "!": "preempted",
    "p": "prefill",
    "o": "critical",
    "s": "warn",
    "b": "label",
}


def phases(detail: RequestDetail) -> list[Phase]:
    """The phases in order, without overlap. They add up to the age of the request."""
    age = detail.age or 0.0
    queued = detail.intake or 0.0
    started = queued + (detail.queue_wait or 0.0)
    result: list[Phase] = [("preprocessing", 0.0, queued), ("queue", queued, min(started, age))]
    if detail.state == "waiting" or (detail.slot is None and detail.ttft is None):
        return [phase for phase in result if phase[2] > phase[1]]
    first = age if detail.ttft is None else min(detail.ttft, age)
    marks: list[Phase] = [("prefill", started, first), ("decode", first, age)]
    for chunk in detail.chunks:
        if chunk.again:
            marks.append(("again", chunk.at, chunk.at + chunk.seconds))
    for stall in detail.stalls:
        marks.append(
            (
                "swapped" if stall.swapped else "preempted",
                stall.at,
                age if stall.seconds is None else stall.at + stall.seconds,
            )
        )
    edges = sorted({edge for _, start, end in marks for edge in (start, end) if started <= edge <= age})
    for start, end in pairwise(edges):
        # Later entries of the list take precedence: they say more exactly what happened.
        name = next((name for name, a, b in reversed(marks) if a <= start and end <= b), "decode")
        if len(result) > 2 and (result[-1][0] == name or end - start < BETWEEN_STEPS):
            result[-1] = (result[-1][0], result[-1][1], end)
        else:
            result.append((name, start, end))
    return [phase for phase in result if phase[2] > phase[1]]


def phase_bar(detail: RequestDetail, width: int) -> list[Line]:
    """The phases as a bar, and the seconds of each."""
    parts = phases(detail)
    age = detail.age or 0.0
    room = width - 2
    spans: list[Span] = [(" ", "text")]
    for cell in range(max(0, room)):
        begin, end = age * cell / room, age * (cell + 1) / room
        # A short preemption must not vanish behind the long decode that shares its cell.
        inside = [p for p in parts if p[1] < end and p[2] > begin]
        name = (
            max(
                inside,
                key=lambda p: (min(p[2], end) - max(p[1], begin)) * (1e3 if p[0] in ("preempted", "swapped") else 1),
            )[0]
            if inside
            else "preprocessing"
        )
        sign, style = PHASES[name]
        spans.append((sign, style))
    totals = {name: sum(end - start for part, start, end in parts if part == name) for name in PHASES}
    legend: list[Span] = []
    for name, seconds in totals.items():
        if seconds >= MIN_SHOWN:
            sign, style = PHASES[name]
            legend += [(f" {sign} ", style), (f"{name} ", "label"), (formats.seconds(seconds), "value")]
    return [exact(_merged(spans), width), exact(legend, width)]


def _merged(spans: Sequence[Span]) -> list[Span]:
    """The spans with neighbours of equal style merged."""
    result: list[Span] = []
    for text, style in spans:
        if result and result[-1][1] == style:
            result[-1] = (result[-1][0] + text, style)
        else:
            result.append((text, style))
    return result


def sentence(detail: RequestDetail, width: int, height: int = 3) -> list[Line]:
    """Why the request waited and why it paused."""
    lines = wrap(clean(detail.why[:200]) + clean(detail.why[200:400]), max(1, width - 2), height)
    return [exact([(f" {text}", "title")], width) for text in lines]


def facts(detail: RequestDetail, pool: PoolInfo, limits: LimitInfo, width: int) -> list[Line]:
    """Sizes, times, and the settings at its admission, or the current ones if it was not admitted yet."""
    force = detail.settings or limits
    arrived = UNKNOWN if detail.arrived is None else time.strftime("%H:%M:%S", time.localtime(detail.arrived))
    sizes: list[Span] = [
        (" arrived ", "label"), (arrived, "value"), ("  age ", "label"), (formats.seconds(detail.age), "value"),
        ("  prompt ", "label"), (formats.whole(detail.prompt_tokens), "value"),
    ]  # fmt: skip
    if detail.cached_tokens:
        sizes += [(" cached ", "label"), (formats.whole(detail.cached_tokens), "value")]
    sizes += [
        ("  out ", "label"), (formats.whole(detail.output_tokens), "value"),
        (f"/{formats.whole(detail.max_tokens)}", "label"),
    ]  # fmt: skip
    if detail.kv_tokens is not None:
        sizes += [("  KV ", "label"), (formats.count(detail.kv_tokens), "value"), (" tok", "label")]
        if pool.bytes_per_token:
            held = (f" {formats.byte_count(detail.kv_tokens * pool.bytes_per_token)}", "label")
            sizes += [held] if line_width(tuple(sizes)) + cell_width(held[0]) <= width else []
    return [
        exact(sizes, width),
        exact(_ttft_parts(detail, width), width),
        exact(
            [(" admitted with  " if detail.settings else " settings now  ", "label"),
             ("slots ", "label"), (formats.whole(force.slots), "value"),
             ("  ctx ", "label"), (formats.whole(force.context), "value"),
             ("  budget ", "label"), (formats.whole(force.budget), "value"),
             ("  ", "text"), (clean(force.mode or ""), "value"),
             *_changed(detail)], width),
    ]  # fmt: skip


def _ttft_parts(detail: RequestDetail, width: int) -> list[Span]:
    """TTFT and its parts, then preemptions. The longest word is shortened if they do not fit."""
    preempted: list[Span] = []
    if detail.preemptions:
        preempted = [
            ("  preempted ", "label"), (f"{detail.preemptions}x {formats.seconds(detail.stalled)}", "preempted"),
        ]  # fmt: skip

    def parts(preprocessing: str) -> list[Span]:
        return [
            (" TTFT ", "label"), (formats.seconds(detail.ttft), "value"),
            (f" = {preprocessing} ", "label"), (formats.seconds(detail.intake), "value"),
            (" + queue ", "label"), (formats.seconds(detail.queue_wait), "value"),
            (" + prefill ", "label"), (formats.seconds(detail.prefill), "value"), *preempted,
        ]  # fmt: skip

    whole = parts("preprocessing")
    return whole if line_width(tuple(whole)) <= width else parts("prep")


def _changed(detail: RequestDetail) -> list[Span]:
    """Settings that changed since the request got its slot."""
    admitted = (detail.intake or 0.0) + (detail.queue_wait or 0.0)
    since = [change for change in detail.changes if detail.settings is None or change.at >= admitted]
    if not since:
        return []
    first = since[0]
    more = f"  and {len(since) - 1} more" if len(since) > 1 else ""
    return [(f"  at {formats.seconds(first.at)}: ", "label"), (clean(first.text), "key"), (more, "label")]


def gap_plot(detail: RequestDetail, width: int, height: int) -> list[Line]:
    """A heading and ``height`` rows of columns: one for each gap, or for the longest of those that share a cell."""
    number = len(detail.gaps)
    heading: list[Span] = [(" gaps ", "title"), (f"n={number}", "label")]
    if number:
        heading += [
            ("  p50 ", "label"), (formats.gap(detail.gap_p50), "value"),
            ("  p95 ", "label"), (formats.gap(detail.gap_p95), "value"),
            ("  max ", "label"), (formats.gap(max(detail.gaps)), "value"),
            ("   log scale", "label"),
        ]  # fmt: skip
    lines = [exact(heading, width)]
    if not number or height <= 0:
        return [*lines, *[blank(width)] * max(0, height)]
    room = max(1, width - 2)
    bins = [range(i * number // room, (i + 1) * number // room) for i in range(room)] if number > room else [
        range(i, i + 1) for i in range(number)
    ]  # fmt: skip
    largest = [max(span, key=detail.gaps.__getitem__) for span in bins if span]
    values = [detail.gaps[i] for i in largest]
    low = max(min(values), (detail.gap_p50 or max(values)) / 2, 1e-6)
    heights = logarithmic([*values], low * 0.8, max(*values, low * 4))
    styles = [_CAUSE_STYLES.get(letter, "decode") for letter in (detail.gap_causes[i : i + 1] for i in largest)]
    for row in column_rows(heights, height):
        spans = [(" ", "text"), *zip(row, styles, strict=True)]
        lines.append(exact(_merged(spans), width))
    return lines


def long_gaps(detail: RequestDetail, width: int, height: int) -> list[Line]:
    """The longest gaps and their causes, each on one or two rows."""
    lines: list[Line] = []
    for gap in detail.long_gaps:
        room = min(2, height - len(lines))
        if room <= 0:
            break
        first, *more = wrap(clean(gap.text), max(1, width - _BEFORE_CAUSE - 1), room) or [""]
        lines.append(
            exact(
                [(f" {right(formats.gap(gap.seconds), 6)}", _CAUSE_STYLES[CAUSE_LETTERS[gap.cause]]),
                 (f" at {left(formats.seconds(gap.at), 6)} ", "label"), (first, "text")], width)
        )  # fmt: skip
        lines += [exact([(" " * _BEFORE_CAUSE, "text"), (text, "text")], width) for text in more]
    return lines


def chunk_lines(chunks: Sequence[PrefillChunk], width: int, height: int) -> list[Line]:
    """A heading, then as many prefill chunks as there is room for, the newest at the bottom."""
    if not chunks or height < 2:
        return []
    lines = [exact([(" prefill at   took tokens  with", "title")], width)]
    hidden = max(0, len(chunks) - (height - 1))
    if hidden:
        hidden += 1
        lines.append(exact([(f" … {hidden} earlier chunks", "label")], width))
    for chunk in chunks[hidden:]:
        with_others = f"{chunk.others} others' " if chunk.others else ""
        writing = f"{chunk.streams} decoding" if chunk.streams else "" if chunk.others else "alone"
        steps = f" in {chunk.steps} steps" if chunk.steps > 1 else ""
        again: Span = ("  again", "warn") if chunk.again else ("", "text")
        lines.append(
            exact(
                [(f" {right(formats.seconds(chunk.at), 10)} ", "label"),
                 (right(formats.gap(chunk.seconds), 6), "value"), (right(formats.whole(chunk.tokens), 7), "value"),
                 again, (f"  {with_others}{writing}{steps}", "label")], width)
        )  # fmt: skip
    return lines
