"""TTFT, ITL and queue wait over both windows: detail for wide terminals."""

from __future__ import annotations

from collections.abc import Callable

from slotdeck.console.drawing import formats
from slotdeck.console.drawing.cells import UNKNOWN, Line, Span, exact, right
from slotdeck.engine.telemetry.frame import Frame

ROWS = 6


def latency_lines(frame: Frame, width: int) -> list[Line]:
    """A heading and five lines: TTFT and ITL for 60 s and 10 min, queue wait for 60 s."""
    minute, ten = frame.minute, frame.ten_minutes
    mark = "≈" if minute.approximate else ""
    heading = f" {'latency':<12}{right('p50', 6)}{right(mark + 'p95', 7)}{right('max', 7)}{right('n', 6)}"

    def line(
        name: str,
        span: str,
        values: tuple[float | None, float | None, float | None],
        number: int,
        form: Callable[[float | None], str],
    ) -> Line:
        spans: list[Span] = [(f" {name:<5}", "label"), (f"{span:<7}", "label")]
        for value, size in zip(values, (6, 7, 7), strict=True):
            spans.append((right(form(value), size), "label" if value is None else "value"))
        return exact([*spans, (right(formats.count(number) if number else UNKNOWN, 6), "label")], width)

    return [
        exact([(heading, "label")], width),
        line("TTFT", "60 s", (minute.ttft_p50, minute.ttft_p95, None), minute.ttft_count, formats.seconds),
        line("", "10 min", (ten.ttft_p50, ten.ttft_p95, None), ten.ttft_count, formats.seconds),
        line("ITL", "60 s", (minute.itl_p50, minute.itl_p95, minute.itl_max), minute.itl_count, formats.gap),
        line("", "10 min", (ten.itl_p50, ten.itl_p95, ten.itl_max), ten.itl_count, formats.gap),
        line("wait", "60 s", (None, minute.wait_p95, None), minute.wait_count, formats.seconds),
    ]
