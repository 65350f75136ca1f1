"""Who waits, for how long, and the TTFT of the last requests."""

from __future__ import annotations

from slotdeck.console.drawing import formats
from slotdeck.console.drawing.cells import UNKNOWN, Line, Span, cell_width, clean, exact, left, right
from slotdeck.console.drawing.glyphs import sparkline
from slotdeck.console.drawing.scrolling import visible_from
from slotdeck.console.sections.listing import Listing
from slotdeck.engine.telemetry.frame import Frame

LAST_TTFT = 20

_TURNS = {"serial": "the one running", "static": "the batch to end"}
"""Modes in which a free slot does not go to the next waiting request, and what that request waits for."""

NARROW = 66
"""Width below which the line of a waiting request uses fewer words."""


def waiting_lines(frame: Frame, listed: Listing, width: int, height: int) -> list[Line]:
    """Header with the TTFT sparkline, then at most ``height`` - 1 lines of waiting requests."""
    if height <= 0:
        return []
    number = frame.waiting_count if frame.waiting_count is not None else len(frame.waiting)
    start: list[Span] = [(" waiting ", "label"), (f"{number or 'nobody'}", "value" if number else "label")]
    if reason := _waits_for(frame):
        start.append((f" for {reason}", "warn"))
    if frame.counters.gave_up_waiting:
        start += [("  gave up ", "label"), (formats.count(frame.counters.gave_up_waiting), "value")]
    end = _ttft_spans(frame)
    room = width - sum(cell_width(text) for text, _ in start) - 1
    while end and sum(cell_width(text) for text, _ in end) > room - 2:
        end = end[:2] if len(end) > 2 else []
    gap = room - sum(cell_width(text) for text, _ in end)
    lines = [exact([*start, (" " * gap, "text"), *end] if end else start, width)]
    fit = height - 1 if (number or 0) <= height - 1 else max(0, height - 2)
    selected = listed.selected_waiting or 0
    first = visible_from(0, len(listed.waiting), fit, range(selected, selected + 1))
    shown = listed.waiting[first : first + fit]
    places = {waiter.request_id: place for place, waiter in enumerate(frame.waiting, 1)}
    for number_listed, waiter in enumerate(shown, first):
        place = places[waiter.request_id]
        who = clean(waiter.user or "") or UNKNOWN
        estimate = UNKNOWN if waiter.estimate is None else formats.about(waiter.estimate)
        is_selected = number_listed == listed.selected_waiting
        lines.append(
            exact(
                [
                    ("›" if is_selected else " ", "key"),
                    (f"{place:>3}  ", "label"),
                    (left(who, min(24, max(8, width // 5))), "text" if waiter.user else "label"),
                    ("  waited " if width >= NARROW else "  for ", "label"),
                    (right(formats.seconds(waiter.waited), 5), "value"),
                    (right(formats.whole(waiter.prompt_tokens), 9), "value"),
                    (" tok", "label"),
                    ("   starts in " if width >= NARROW else "  in ", "label"),
                    (estimate, "text" if waiter.estimate is not None else "label"),
                ],
                width,
            )
        )
    if (number or 0) > len(shown) and len(lines) < height:
        lines.append(exact([(f"      {number - len(shown)} more wait", "label")], width))
    return lines


def _waits_for(frame: Frame) -> str:
    """What requests wait for besides a slot: the batching mode, or room in the pool for the next prompt."""
    limit, free = frame.limits.slots, frame.pool.free
    occupied = sum(slot.state != "idle" for slot in frame.slots)
    if not frame.waiting or limit is None:
        return ""
    if occupied and frame.limits.mode in _TURNS:
        return _TURNS[frame.limits.mode]
    if free is None or occupied >= limit:
        return ""
    return "KV room" if (frame.waiting[0].prompt_tokens or 0) > free + (frame.pool.cached or 0) else ""


def _ttft_spans(frame: Frame) -> list[Span]:
    """Two spans of label and sparkline, then two of the maximum, which are dropped first if there is no room."""
    values = frame.recent_ttft[-LAST_TTFT:]
    if not values:
        return []
    return [
        (f"TTFT of the last {len(values)}  ", "label"),
        (sparkline(values, LAST_TTFT), "decode"),
        ("  max ", "label"),
        (formats.seconds(max(values)), "value"),
    ]
