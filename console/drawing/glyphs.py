"""The few signs the screens draw with: bars, sparklines and state marks, all of one cell and from the BMP.

For terminals without UTF-8 every sign has an ASCII twin of the same width, put in at the last moment.
"""

from __future__ import annotations

from collections.abc import Sequence

SPARK = "▁▂▃▄▅▆▇█"
BAR_LIVE, BAR_CACHED, BAR_FREE = "█", "▒", "░"

STATE_MARKS = {"idle": "·", "prefill": "▸", "decode": "●", "held": "■", "preempted": "!", "swapped": "⇄"}
"""One mark for each state of a slot. The name of the state is always shown beside it."""

ASCII_TWINS = str.maketrans(
    {
        "▁": "_", "▂": ".", "▃": ":", "▄": "-", "▅": "=", "▆": "+", "▇": "*", "█": "#", "▒": "+", "░": ".",
        "·": ".", "▸": ">", "●": "*", "■": "=", "⇄": "~", "✓": "v", "✗": "x", "±": "~", "×": "x",
        "–": "-", "…": "~", "→": ">", "≈": "~", "≥": ">", "↑": "^", "↓": "v", "›": ">", "▾": "v", "━": "=", "┊": "|",
        "│": "|", "─": "-", "╭": "+", "╮": "+", "╰": "+", "╯": "+",
    }
)  # fmt: skip


def shares(parts: Sequence[int], width: int) -> list[int]:
    """Whole cells for each part of a bar: they sum to ``width``, and a part above 0 gets at least one if it can.

    All zero parts give all zero cells.
    """
    total = sum(parts)
    if total <= 0 or width <= 0:
        return [0] * len(parts)
    result = [max(part * width // total, 1 if part > 0 else 0) for part in parts]
    while sum(result) != width:
        step = 1 if sum(result) < width else -1
        order = sorted(range(len(parts)), key=lambda i: step * (parts[i] * width / total - result[i]), reverse=True)
        chosen = next((i for i in order if step > 0 or result[i] > 1), order[0])
        result[chosen] += step
    return result


def progress(done: int, whole: int, width: int) -> tuple[str, str]:
    """The full and the empty part of a progress bar of ``width`` cells."""
    full = min(width, done * width // whole) if whole > 0 else 0
    return BAR_LIVE * full, BAR_FREE * (width - full)


def sparkline(values: Sequence[float], width: int) -> str:
    """The last ``width`` values, scaled from 0 to the largest of them. A value of 0 still gets the lowest bar."""
    shown = values[-width:] if width > 0 else []
    top = max(shown, default=0.0)
    if top <= 0:
        return SPARK[0] * len(shown)
    return "".join(SPARK[min(7, int(value / top * 7.999))] for value in shown)


def gap_bars(gaps: Sequence[float], typical: float | None, width: int) -> str:
    """One bar for each of the last gaps on a scale that never jumps: each step up doubles the gap.

    The second bar is the ``typical`` gap (the median of the given ones if None), so that a lone stall stands out
    without flattening the rest.
    """
    shown = gaps[-width:] if width > 0 else []
    if not shown:
        return ""
    reference = typical or sorted(shown)[len(shown) // 2]
    if reference <= 0:
        return SPARK[0] * len(shown)
    return "".join(SPARK[_doublings(gap / reference)] for gap in shown)


def _doublings(ratio: float) -> int:
    """Index of the bar: 0 up to 0.75 times the typical gap, 1 up to 1.5, 2 up to 3, 3 up to 6, and so on to 7."""
    level, edge = 0, 0.75
    while ratio > edge and level < 7:
        level, edge = level + 1, edge * 2
    return level


def to_ascii(text: str) -> str:
    """The text in ASCII with the same width: known signs become their twins, all others ``?``."""
    if text.isascii():
        return text
    from slotdeck.console.drawing.cells import cell_width

    text = text.translate(ASCII_TWINS)
    return "".join(c if c.isascii() else "?" * cell_width(c) for c in text)
