"""The upper lines of the Live page: engine, limits, KV pool, speed, latency, host and totals.

All but the first are rows of one grid with a label and four fields, so that numbers keep their place.
"""

from __future__ import annotations

from slotdeck.console.drawing import formats
from slotdeck.console.drawing.cells import UNKNOWN, Line, Span, cell_width, clean, cut, exact
from slotdeck.console.drawing.glyphs import BAR_CACHED, BAR_FREE, BAR_LIVE, shares
from slotdeck.console.state.store import View
from slotdeck.engine.telemetry.frame import CounterInfo, Frame, LimitInfo

LABEL_CELLS = 9
FIELD_CELLS = (20, 21, 17, 13)
"""Widths of the four fields at 80 columns. Wider terminals divide the rest among them."""

MIN_BAR = 8
"""Smallest width of the bar of the pool."""

POOL_NEARLY_FULL, POOL_FULL = 90, 97
"""Percent of the pool held by requests from which it is a warning, and from which it is critical."""


def title_line(view: View, width: int) -> Line:
    """Product, model, types, device, mode and address. The name of the model is cut if there is no room."""
    frame = view.frame
    if frame is None:
        return exact([(" slotdeck", "title")], width)
    engine = frame.engine
    device = clean(engine.device or UNKNOWN) + (f" {engine.threads}T" if engine.threads else "")
    types = clean(engine.weights or UNKNOWN)
    if engine.kv_dtype and engine.kv_dtype != engine.weights:
        types += f"/{clean(engine.kv_dtype)} KV"
    url = clean(engine.url or "").split("://")[-1].rstrip("/")
    words: list[Span] = [
        (types, "text"),
        (device, "text"),
        (_mode(frame.limits), "text" if frame.limits.next_mode is None else "warn"),
    ]
    start: list[Span] = [(f" {clean(engine.name)}", "title"), (f" {clean(engine.version or '')}".rstrip(), "label")]
    fixed = (
        sum(cell_width(text) for text, _ in start)
        + sum(cell_width(text) + 2 for text, _ in words if text)
        + 4
        + cell_width(url)
    )
    name = cut(clean(engine.model or UNKNOWN), max(12, width - fixed))
    spans = [*start, ("  ", "text"), (name, "value")]
    for text, style in words:
        if text:
            spans += [("  ", "text"), (text, style)]
    room = width - sum(cell_width(text) for text, _ in spans) - cell_width(url)
    if room >= 2:
        spans += [(" " * room, "text"), (url, "key")]
    return exact(spans, width)


def _mode(limits: LimitInfo) -> str:
    """The batching mode, and the next mode if one waits for running requests to end."""
    return clean(limits.mode or "") + (f"→{clean(limits.next_mode)}" if limits.next_mode else "")


def grid_lines(view: View, width: int) -> list[Line]:
    """Limits, KV pool, speed, window of 60 s, host, totals: six lines."""
    frame = view.frame
    if frame is None:
        return [exact([], width)] * 6
    counters = frame.counters
    return [
        _row("limits", _limit_fields(view, frame, width), width),
        _pool_line(frame, width),
        _row(
            "speed",
            [
                _pair("gen", formats.rate(frame.generated_per_second), " tok/s"),
                _pair("prompt", formats.rate(frame.prompt_per_second), " tok/s"),
                [("KV swap ", "label"), *_moving(view.kv_swap_rate, "warn")],
                _pair("up", formats.clock(frame.uptime)),
            ],
            width,
        ),
        _window_line(frame, width),
        _row("host", _host_fields(frame), width),
        _row(
            "total",
            [
                [*_pair("finished", formats.count(counters.finished)), *_failed(counters)],
                [*_counter("rejected", counters.rejected, view, "rejected"), *_invalid(counters, view)],
                _counter("cancelled", counters.cancelled, view, None),
                _counter("preempted", counters.preemptions, view, "preemptions"),
            ],
            width,
        ),
    ]


def _row(label: str, fields: list[list[Span]], width: int, label_style: str = "label") -> Line:
    """A label and fields in columns. A field that is too wide uses the gap after it; numbers are never cut.

    If the columns do not fit, as many whole fields as fit stand side by side.
    """
    if width < LABEL_CELLS + sum(FIELD_CELLS):
        return _packed(label, fields, width, label_style)
    extra = max(0, width - LABEL_CELLS - sum(FIELD_CELLS)) // len(FIELD_CELLS)
    spans: list[Span] = [(f" {label:<{LABEL_CELLS - 1}}", label_style)]
    end = LABEL_CELLS
    used = LABEL_CELLS
    for index, field in enumerate(fields):
        if used < end:
            spans.append((" " * (end - used), "text"))
            used = end
        elif index and used > end - 1:
            spans.append(("  ", "text"))
            used += 2
        spans += field
        used += sum(cell_width(text) for text, _ in field)
        end += (FIELD_CELLS[index] + extra) if index < len(FIELD_CELLS) else 0
    return exact(spans, width) if used <= width else _packed(label, fields, width, label_style)


def _packed(label: str, fields: list[list[Span]], width: int, label_style: str) -> Line:
    spans: list[Span] = [(f" {label:<{LABEL_CELLS - 1}}"[: LABEL_CELLS - 1], label_style)]
    used = LABEL_CELLS - 1
    for number, field in enumerate(fields):
        between = "  " if number else " "
        size = len(between) + sum(cell_width(text) for text, _ in field)
        if used + size > width:
            continue
        spans += [(between, "text"), *field]
        used += size
    return exact(spans, width)


def _pair(label: str, value: str, unit: str = "", style: str = "value") -> list[Span]:
    return [(f"{label} ", "label"), (value, "label" if value == UNKNOWN else style), (unit, "label")]


def _limit_fields(view: View, frame: Frame, width: int) -> list[list[Span]]:
    limits = frame.limits
    occupied, waiting = view.occupied, frame.waiting_count
    draining = occupied is not None and limits.slots is not None and occupied > limits.slots
    full = waiting is not None and limits.queue is not None and waiting >= limits.queue > 0
    return [
        _pair(
            "slots",
            f"{formats.whole(occupied)}/{formats.whole(limits.slots)}{' draining' if draining else ''}",
            style="warn" if draining else "value",
        ),
        _pair(
            "queue",
            f"{formats.whole(waiting)}/{formats.whole(limits.queue)}{' full' if full else ''}",
            style="warn" if full else "value",
        ),
        _pair("ctx", formats.whole(limits.context), "/request" if width >= LABEL_CELLS + sum(FIELD_CELLS) else ""),
        _budget(limits),
    ]


def _budget(limits: LimitInfo) -> list[Span]:
    """The budget, and with an ITL target the part of it that may be used now."""
    text = formats.whole(limits.budget)
    if limits.itl_target and limits.budget_in_force is not None:
        text = f"{limits.budget_in_force}/{text}"
    missed = limits.itl_outlook in ("floor", "unreachable")
    return _pair("budget", text, style="warn" if missed else "value")


def missed_target(limits: LimitInfo) -> str:
    """One sentence that says why the ITL target is missed; empty if it is not."""
    if not limits.itl_target or limits.itl_outlook not in ("floor", "unreachable"):
        return ""
    target, expected = formats.gap(limits.itl_target / 1000), formats.gap(limits.itl_expected)
    if limits.itl_outlook == "unreachable":
        return f"ITL target {target} unreachable: decoding alone takes {expected}"
    floor = formats.whole(limits.budget_in_force)
    return f"ITL target {target} not kept beside prompts: floor of {floor} tokens, {expected} a step"


def _pool_line(frame: Frame, width: int) -> Line:
    pool = frame.pool
    total, live, cached, free = pool.total, pool.live, pool.cached, pool.free
    label: Span = (f" {'KV pool':<{LABEL_CELLS - 1}}", "label")
    if not total or live is None:
        return exact([label, (f"size {UNKNOWN}", "label")], width)
    percent = 100 * live / total
    level = "critical" if percent >= POOL_FULL else "warn" if percent >= POOL_NEARLY_FULL else "value"
    word = {"critical": "full", "warn": "high", "value": ""}[level]
    spans: list[Span] = [
        ("live ", "label"),
        (f"{formats.count(live):>4} {percent:>3.0f}%", level),
        ("  cached ", "label"),
        (f"{formats.count(cached):>4}", "value"),
        ("  free ", "label"),
        (f"{formats.count(free):>4}", "value"),
        ("  of ", "label"),
        (f"{total}", "value"),
        (f" {word:<4}", level),
    ]
    if MIN_BAR + LABEL_CELLS + sum(cell_width(text) for text, _ in spans) + 2 > width:
        spans = [*spans[:2], *spans[6:]]  # the bar shows what is cached and free
    bar_cells = max(MIN_BAR, width - LABEL_CELLS - sum(cell_width(text) for text, _ in spans) - 2)
    rest = max(0, total - live - (cached or 0))
    bar = shares([live, cached or 0, rest], bar_cells)
    drawn: list[Span] = [
        (BAR_LIVE * bar[0], "live" if level == "value" else level),
        (BAR_CACHED * bar[1], "cached"),
        (BAR_FREE * bar[2], "free"),
    ]
    return exact([label, *drawn, ("  ", "text"), *spans], width)


def _window_line(frame: Frame, width: int) -> Line:
    window = frame.minute
    mark = "≈" if window.approximate else ""

    def measured(label: str, value: str, number: int) -> list[Span]:
        known = value != UNKNOWN
        spans: list[Span] = [(f"{label} ", "label"), (mark + value if known else value, "value" if known else "label")]
        return [*spans, (f" n={formats.count(number)}", "label")] if known else spans

    fields = [
        measured("TTFT p95", formats.seconds(window.ttft_p95), window.ttft_count),
        measured("ITL p95", formats.gap(window.itl_p95), window.itl_count),
        measured("wait p95", formats.seconds(window.wait_p95), window.wait_count),
    ]
    return _row(f"{window.seconds:.0f} s", fields, width)


def _moving(value: float | None, style: str) -> list[Span]:
    """Bytes per second. Anything but 0 stands out."""
    text = formats.byte_count(value)
    shown = "label" if value is None else "value" if text == "0" else style
    return [(text, shown), ("" if value is None else " B/s" if text == "0" else "/s", "label")]


def _host_fields(frame: Frame) -> list[list[Span]]:
    host = frame.host
    cpu = UNKNOWN if host.cpu_percent is None else f"{host.cpu_percent:.0f}%"
    ram = UNKNOWN
    if host.memory_used is not None:
        ram = f"{formats.gibibytes(host.memory_used)}/{formats.gibibytes(host.memory_total)}"
    return [
        [*_pair("CPU", cpu), *_gpu(frame)],
        _pair("RAM", ram, "" if ram == UNKNOWN else " GiB"),
        [
            ("OS swap in ", "label"),
            *_moving(host.os_swap_in, "critical")[:1],
            (" out ", "label"),
            *_moving(host.os_swap_out, "critical"),
        ],
    ]


def _gpu(frame: Frame) -> list[Span]:
    percent = frame.host.gpu_percent
    return [] if percent is None else [("  GPU ", "label"), (f"{percent:.0f}%", "value")]


def _failed(counters: CounterInfo) -> list[Span]:
    """Failed requests, if there were any."""
    return [("  failed ", "label"), (formats.count(counters.failed), "critical")] if counters.failed else []


def _invalid(counters: CounterInfo, view: View) -> list[Span]:
    """Invalid requests, if there were any."""
    return [("  ", "text"), *_counter("invalid", counters.invalid, view, "invalid")] if counters.invalid else []


def _counter(label: str, value: float | None, view: View, counter: str | None) -> list[Span]:
    """A total. It stands out if it has increased recently."""
    fresh = counter is not None and counter in view.recently_increased
    return _pair(label, formats.count(value), style="warn" if fresh else "value")
