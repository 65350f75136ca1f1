"""The doctor's findings as lines: the selected one in full, the others with title and remedy. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from slotdeck.console.advice.finding import Finding, cost_text
from slotdeck.console.advice.window import SETTLED
from slotdeck.console.drawing import formats
from slotdeck.console.drawing.cells import Line, Span, blank, cell_width, clean, exact, wrap
from slotdeck.console.keys.actions import SETTING_KEYS
from slotdeck.console.state.store import LogEntry
from slotdeck.engine.telemetry.frame import Frame, LimitInfo, WindowInfo


def finding_lines(
    findings: Sequence[Finding], place: int, limits: LimitInfo, width: int, expected: str = ""
) -> tuple[list[Line], range]:
    """All findings, and which of the lines belong to the selected one, which is at ``place``.

    ``limits`` are the settings in force, ``expected`` is the predicted effect of the selected finding's remedy.
    """
    lines: list[Line] = []
    chosen = range(0)
    for number, finding in enumerate(findings):
        start = len(lines)
        lines.append(_heading(finding, width, selected=number == place))
        if number == place:
            for text in finding.evidence:
                lines += [exact([("     ", "text"), (row, "value")], width) for row in wrap(clean(text), width - 6, 2)]
            lines += [
                exact([("   ", "text"), (row, "text")], width) for row in wrap(clean(finding.explanation), width - 4, 3)
            ]
        lines += _remedy(finding, limits, width, selected=number == place)
        if number == place:
            for row_number, row in enumerate(wrap(clean(expected), width - 10, 3)):
                lines.append(exact([("         " if row_number else "   then  ", "label"), (row, "text")], width))
            chosen = range(start, len(lines))
        lines.append(blank(width))
    return lines[:-1], chosen


def _heading(finding: Finding, width: int, *, selected: bool) -> Line:
    mark = "!" if finding.level == "critical" else "-"
    cost = f"{cost_text(finding)} " if cost_text(finding) else ""
    room = width - cell_width(cost)
    head = exact(
        [("› " if selected else "  ", "key"), (f"{mark} ", finding.level), (clean(finding.title), finding.level)], room
    )
    return (*head, (cost, "value")) if cost and room > 0 else exact(head, width)


def _remedy(finding: Finding, limits: LimitInfo, width: int, *, selected: bool) -> list[Line]:
    """What to change, and the keys that do it; or that it is done already."""
    hand: list[Span] = []
    if finding.in_force(limits):
        hand = [("   in force", "ok")]
    elif finding.changes and selected:
        keys = [key for name in finding.changes if (key := SETTING_KEYS.get(name))]
        by_hand: list[Span] = [(", by hand with ", "label"), (" ".join(keys), "key")] if keys else []
        hand = [("   enter", "key"), (" applies it", "label"), *by_hand]
    elif selected:
        hand = [("   no live setting helps", "label")]
    room = width - 9 - sum(cell_width(text) for text, _ in hand)
    first, *rest = wrap(clean(finding.remedy), max(20, room), 3) or [""]
    lines = [exact([("   try   ", "label"), (first, "title"), *hand], width)]
    return lines + [exact([("         ", "label"), (row, "title")], width) for row in rest]


def early_lines(since: float, width: int) -> list[Line]:
    """A note that a change is too recent to be judged, and when it will be."""
    left = max(0.0, SETTLED - since)
    text = f" Changed {since:.0f} s ago. The findings are from before; the next verdict comes in {left:.0f} s."
    return [exact([(row, "label")], width) for row in wrap(text, width, 2)]


def outcome_lines(entries: Sequence[LogEntry], width: int) -> list[Line]:
    """The outcomes of the newest changes."""
    if not entries:
        return []
    lines = [exact([(" Outcome of the last change", "title")], width)]
    for entry in entries:
        lines += [
            exact([(" ± " if number == 0 else "   ", "key"), (row, "value")], width)
            for number, row in enumerate(wrap(clean(entry.text), width - 4, 3))
        ]
    return [*lines, blank(width)]


def healthy_lines(frame: Frame, latency: WindowInfo, width: int) -> list[Line]:
    """The numbers that were judged and found good."""
    minutes = "10 min" if latency.seconds > 60 else "60 s"
    rows: list[tuple[str, str, int | None]] = [
        ("TTFT p95", formats.seconds(latency.ttft_p95), latency.ttft_count),
        ("queue wait p95", formats.seconds(latency.wait_p95), latency.wait_count),
        ("ITL p95", formats.gap(latency.itl_p95), latency.itl_count),
        ("preemptions", formats.count(frame.counters.preemptions), None),
        ("refused with 503", formats.count(frame.counters.rejected), None),
    ]
    lines = []
    for label, value, number in rows:
        count = f"  n={formats.count(number)} in {minutes}" if number is not None else "  since the start"
        lines.append(exact([(f"   {label:<18}", "label"), (f"{value:>7}", "value"), (count, "label")], width))
    return lines
