"""Who waits, for how long, and what TTFT the last ones got."""

from __future__ import annotations

from console.widgets import formats
from console.widgets.cells import UNKNOWN, Line, Span, clean, exact, left, right, width
from console.widgets.glyphs import sparkline
from engine.telemetry.frame import Frame

LAST_TTFT = 20


def waiting_lines(frame: Frame, cells: int, rows: int) -> list[Line]:
    """Header with the TTFT sparkline, then at most ``rows`` - 1 lines of waiting requests."""
    if rows <= 0:
        return []
    number = frame.waiting_count if frame.waiting_count is not None else len(frame.waiting)
    start: list[Span] = [(" waiting ", "label"), (f"{number or 'nobody'}", "value" if number else "label")]
    if frame.counters.gave_up_waiting:
        start += [("  gave up ", "label"), (formats.count(frame.counters.gave_up_waiting), "value")]
    end = _ttft_spans(frame, max(0, cells - 20))
    room = cells - sum(width(text) for text, _ in start) - sum(width(text) for text, _ in end) - 1
    lines = [exact([*start, (" " * room, "text"), *end] if room >= 2 else start, cells)]
    shown = frame.waiting[: rows - 1]
    if (number or 0) > len(shown) and len(shown) == rows - 1:
        shown = shown[: max(0, rows - 2)]
    for place, waiter in enumerate(shown, 1):
        who = clean(waiter.user or "") or UNKNOWN
        estimate = UNKNOWN if waiter.estimate is None else formats.about(waiter.estimate)
        lines.append(
            exact(
                [
                    (f" {place:>3}  ", "label"),
                    (left(who, min(24, max(8, cells // 5))), "text" if waiter.user else "label"),
                    ("  waited ", "label"),
                    (right(formats.seconds(waiter.waited), 5), "value"),
                    (right(formats.whole(waiter.prompt_tokens), 9), "value"),
                    (" tok", "label"),
                    ("   a slot in ", "label"),
                    (estimate, "text" if waiter.estimate is not None else "label"),
                ],
                cells,
            )
        )
    if (number or 0) > len(shown) and len(lines) < rows:
        lines.append(exact([(f"      {number - len(shown)} more wait", "label")], cells))
    return lines


def _ttft_spans(frame: Frame, cells: int) -> list[Span]:
    values = frame.recent_ttft[-LAST_TTFT:]
    if not values or cells < 36:
        return []
    return [
        (f"TTFT of the last {len(values)}  ", "label"),
        (sparkline(values, LAST_TTFT), "decode"),
        ("  most ", "label"),
        (formats.seconds(max(values)), "value"),
    ]
