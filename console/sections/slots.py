"""The table of slots: one row each, with the state as word and mark and the last gaps between tokens as bars."""

from __future__ import annotations

from dataclasses import dataclass

from slotdeck.console.drawing import formats
from slotdeck.console.drawing.cells import UNKNOWN, Line, Span, blank, clean, exact, left, right
from slotdeck.console.drawing.glyphs import STATE_MARKS, gap_bars, progress
from slotdeck.console.drawing.scrolling import visible_from
from slotdeck.console.sections.listing import Listing, ListState
from slotdeck.engine.telemetry.frame import Frame, SlotInfo

LONG_GAP = 8.0
"""The newest gap gets a colour if it is this many times the typical one."""

MAX_GAPS = 24


@dataclass(frozen=True)
class Columns:
    """The columns that depend on the width of the table."""

    who: int
    parts: bool
    preprocessing: bool
    gaps: int


def columns(width: int) -> Columns:
    """The columns for a table of ``width`` cells. 80 cells have all but ``prep``, narrower tables no parts of TTFT."""
    # slot 6, state 12, gap 1, tokens 10+2, TTFT 5+1, ITL 7+2: what every width shows
    room = width - 46
    parts = room >= 30
    intake = room >= 57
    room -= (10 if parts else 0) + (7 if intake else 0)
    who = min(24, max(6, room * 5 // 12))
    return Columns(who, parts, intake, max(0, min(MAX_GAPS, room - who)))


def header(width: int, sort: str = "slot") -> Line:
    """Names of the columns. ``▾`` marks the one by which the slots are sorted."""
    shape = columns(width)

    def name(text: str, *sorts: str) -> str:
        return f"{text}▾" if sort in sorts and sort != "slot" else text

    text = f" slot {left(name('state', 'state'), 12)}{left(name('who', 'who'), shape.who)} "
    text += f"{right({'prompt': 'prompt▾+out', 'output': 'prmpt+out▾'}.get(sort, 'prompt+out')[-10:], 10)}  "
    text += f"{right(name('TTFT', 'TTFT'), 5)} "
    if shape.preprocessing:
        text += f"{right('prep', 6)} "
    if shape.parts:
        text += f"{left('q+prefill', 9)} "
    others = {"stalled": "by stall ▾", "age": "by age ▾"}
    text += f"{right(name('ITLp95' if sort == 'ITL p95' else 'ITL p95', 'ITL p95'), 7)}  "
    text += left(others.get(sort, "last gaps" if shape.gaps >= len("last gaps") else "gaps"), shape.gaps)
    return exact([(text, "label")], width)


def row(slot: SlotInfo, typical_gap: float | None, width: int) -> Line:
    """One slot in exactly ``width`` cells."""
    shape = columns(width)
    spans: list[Span] = [(f" {slot.slot:>3}  ", "label" if slot.state == "idle" else "value")]
    spans.append((left(f"{STATE_MARKS[slot.state]} {slot.state}", 12), slot.state))
    if slot.state == "idle":
        return exact(spans, width)
    who = clean(slot.user or "") or UNKNOWN
    spans += [(left(who, shape.who), "text" if slot.user else "label"), (" ", "text")]
    spans += [*_tokens(slot), ("  ", "text")]
    spans += [(right(formats.seconds(slot.ttft), 5), "label" if slot.ttft is None else "value"), (" ", "text")]
    if shape.preprocessing:
        spans.append((right(formats.seconds(slot.intake), 6) + " ", "label"))
    if shape.parts:
        spans.append((left(_parts(slot), 9) + " ", "label"))
    if slot.state in ("preempted", "swapped"):
        return exact([*spans, *_lost(slot, shape.gaps)], width)
    spans += [(right(formats.gap(slot.itl_p95), 7), "label" if slot.itl_p95 is None else "value"), ("  ", "text")]
    spans += _last(slot, typical_gap, shape.gaps)
    return exact(spans, width)


def _tokens(slot: SlotInfo) -> list[Span]:
    """Prompt and output tokens, or the progress of the prefill."""
    if slot.state == "prefill":
        text = f"{formats.whole(slot.computed_tokens)}/{formats.whole(_to_compute(slot))}"
        return [(right(text, 10), "value")]
    prompt, output = formats.whole(slot.prompt_tokens), formats.whole(slot.output_tokens)
    room = 10 - len(output)
    return [(right(f"{prompt}+", room), "label"), (output, "value")]


def _to_compute(slot: SlotInfo) -> int | None:
    """Tokens to prefill before the next output token: the prompt, and after a preemption the output so far."""
    return None if slot.prompt_tokens is None else slot.prompt_tokens + (slot.output_tokens or 0)


def _parts(slot: SlotInfo) -> str:
    """Queue wait and prefill."""
    if slot.queue_wait is None:
        return UNKNOWN
    wait = formats.seconds(slot.queue_wait).removesuffix("s")
    return f"{wait}+{'…' if slot.prefill is None else formats.seconds(slot.prefill).removesuffix('s')}"


def _last(slot: SlotInfo, typical: float | None, width: int) -> list[Span]:
    """The last gaps as bars, or the progress of a prefill."""
    times = slot.preemptions or 0
    to_compute = _to_compute(slot)
    if slot.state == "prefill" and to_compute and slot.computed_tokens is not None:
        bar = min(10, max(0, width - 5))
        full, empty = progress(slot.computed_tokens, to_compute, bar)
        percent = min(100, 100 * slot.computed_tokens // to_compute)
        again: list[Span] = [(" again", "preempted")] if times and width >= 21 else []
        return [(full, "prefill"), (empty, "free"), (f" {percent:>3}%", "value"), *again]
    note = f" x{times}" if times else ""
    bars = gap_bars(slot.gaps, typical, width - len(note))
    long = bool(slot.gaps) and typical is not None and slot.gaps[-1] > typical * LONG_GAP
    return [(bars, "warn" if long else "decode"), (note, "preempted")]


def _lost(slot: SlotInfo, gaps: int) -> list[Span]:
    """How often the request was preempted and how long it stalled, in the columns of ITL and gaps."""
    word = "recompute" if slot.state == "preempted" else "swap"
    times = f"x{max(1, slot.preemptions or 0)}"
    return [
        (f"  {word} {times}" if gaps >= 10 else f"  {times}", slot.state),
        ("  stalled " if gaps >= 20 else "  ", "label"),
        (formats.seconds(slot.stalled), slot.state),
    ]


def table(frame: Frame, listed: Listing, width: int, height: int, choice: ListState) -> list[Line]:
    """Header and slots in exactly ``height`` rows from the choice's offset on, saying how many are hidden."""
    if height <= 0:
        return []
    slots = listed.slots
    lines = [header(width, choice.sort)]
    room = _rooms(len(slots), height)
    offset = table_offset(len(slots), height, choice.offset, listed.selected_slot)
    for place, slot in enumerate(slots[offset : offset + room], offset):
        line = row(slot, frame.minute.itl_p50, width)
        lines.append(marked(line) if place == listed.selected_slot else line)
    hidden_above, hidden_below = offset, max(0, len(slots) - offset - room)
    if (hidden_above or hidden_below) and len(lines) < height:
        busy = sum(s.state != "idle" for s in (*slots[:offset], *slots[offset + room :]))
        text = f"  ↑ {hidden_above} above  ↓ {hidden_below} below, {busy} of them busy"
        lines.append(exact([(text, "key"), ("   j k g G move", "label")], width))
    if not slots:
        text = f"no slot matches {clean(choice.wanted)!r}" if choice.wanted else f"{UNKNOWN}  no slots known"
        lines.append(exact([(f" {text}", "label")], width))
    return (lines + [blank(width)] * height)[:height]


def marked(line: Line) -> Line:
    """The line with a mark in its margin, for the selected request."""
    text, style = line[0]
    return (("›", "key"), (text[1:], style), *line[1:]) if text.startswith(" ") else line


def _rooms(slots: int, height: int) -> int:
    """Slots that fit into ``height`` rows beside the header and, if not all fit, the line about hidden slots."""
    room = height - 1
    return max(0, room - 1) if slots > room else max(0, room)


def table_offset(slots: int, height: int, offset: int, selected: int | None) -> int:
    """The first slot to show in a table of ``height`` rows: near ``offset``, with the selected slot visible."""
    keep = None if selected is None else range(selected, selected + 1)
    return visible_from(offset, slots, _rooms(slots, height), keep)
