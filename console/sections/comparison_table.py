"""A comparison as a table: one row before, one after, one for the difference, each percentile with its n."""

from __future__ import annotations

from collections.abc import Callable

from slotdeck.console.drawing import formats
from slotdeck.console.drawing.cells import UNKNOWN, Line, Span, exact, left, right
from slotdeck.console.state.comparison import MIN_FIRST_TOKENS, MIN_GAPS, Comparison, Side

COLUMNS = (16, 16, 11, 11)


def comparison_lines(comparison: Comparison, width: int) -> list[Line]:
    """One line during the minute after the change; then the table, or why there is none."""
    closes: list[Span] = [("  esc", "key"), (" closes", "label")]
    head: list[Span] = [("± ", "key"), (comparison.words, "title")]
    after = comparison.after
    if after is None:
        text = f"  compared in {comparison.left} s"
        return [exact([*head, (text, "label"), *closes], width)]
    heading = exact([*head, ("  60 s before and after", "label"), *closes], width)
    before = comparison.before
    if not comparison.enough:
        text = (
            f"   not enough traffic to compare: first tokens {before.ttft_count}→{after.ttft_count}, "
            f"gaps {formats.count(before.itl_count)}→{formats.count(after.itl_count)}"
        )
        return [heading, exact([(text, "label")], width)]
    names = f"{right('TTFT p95', 9)}{' ' * 7}{right('ITL p95', 9)}{' ' * 7}{right('tok/s', 11)}{right('preempted', 11)}"
    return [
        heading,
        exact([(f"         {names}", "label")], width),
        _side("before", before, width),
        _side("after", after, width),
        _difference(before, after, width),
    ]


def _side(label: str, side: Side, width: int) -> Line:
    spans: list[Span] = [(f"   {left(label, 6)}", "label")]
    for text, number, size in (
        (formats.seconds(side.ttft_p95), side.ttft_count, COLUMNS[0]),
        (formats.gap(side.itl_p95), side.itl_count, COLUMNS[1]),
    ):
        note = f" n={formats.count(number)}"
        spans += [(right(text, size - 7), "label" if text == UNKNOWN else "value"), (left(note, 7), "label")]
    spans += [(right(formats.rate(side.generated), COLUMNS[2]), "value")]
    spans += [(right(formats.whole(side.preemptions), COLUMNS[3]), "value")]
    return exact(spans, width)


def _difference(before: Side, after: Side, width: int) -> Line:
    """The difference in percent and in preemptions, or how many samples would have been needed."""
    first_tokens = None if before.enough_first_tokens and after.enough_first_tokens else MIN_FIRST_TOKENS
    gaps = None if before.enough_gaps and after.enough_gaps else MIN_GAPS
    spans: list[Span] = [("   change", "label")]
    spans += _percent(before.ttft_p95, after.ttft_p95, COLUMNS[0] - 7, min_samples=first_tokens, better=_lower)
    spans += [(" " * 7, "text")]
    spans += _percent(before.itl_p95, after.itl_p95, COLUMNS[1] - 7, min_samples=gaps, better=_lower)
    spans += [(" " * 7, "text")]
    spans += _percent(before.generated, after.generated, COLUMNS[2], min_samples=gaps, better=_higher)
    if before.preemptions is None or after.preemptions is None:
        spans.append((right(UNKNOWN, COLUMNS[3]), "label"))
    else:
        more = after.preemptions - before.preemptions
        spans.append((right(f"{more:+d}" if more else "same", COLUMNS[3]), _style(more, _lower)))
    return exact(spans, width)


def _lower(change: float) -> bool:
    return change < 0


def _higher(change: float) -> bool:
    return change > 0


def _style(change: float, better: Callable[[float], bool]) -> str:
    return "value" if not change else "ok" if better(change) else "warn"


def _percent(
    before: float | None, after: float | None, size: int, *, min_samples: int | None, better: Callable[[float], bool]
) -> list[Span]:
    """``min_samples``: the number that would have been needed; ``None``: there are enough."""
    if min_samples is not None or not before or after is None:
        return [(right(UNKNOWN if min_samples is None else f"n < {min_samples}", size), "label")]
    change = round(100 * (after - before) / before)
    return [(right(f"{change:+d}%" if change else "same", size), _style(change, better))]
