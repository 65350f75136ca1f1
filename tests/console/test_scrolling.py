"""Selecting and scrolling: bounds, what stays visible, and the row that says how much follows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotdeck.console.drawing.cells import blank, plain
from slotdeck.console.drawing.scrolling import moved, scrolled, visible_from


@pytest.mark.parametrize(
    ("selected", "step", "count", "expected"),
    [(0, 1, 3, 1), (2, 1, 3, 2), (0, -1, 3, 0), (1, 1000, 3, 2), (2, -1000, 3, 0), (5, 0, 3, 2), (0, 1, 0, 0)],
)
def test_the_selection_stops_at_both_ends(selected: int, step: int, count: int, expected: int) -> None:
    assert moved(selected, step, count) == expected


@pytest.mark.parametrize(
    ("offset", "keep", "expected"),
    [
        (0, None, 0),
        (3, None, 3),
        (9, None, 6),  # the last rows are filled
        (-2, None, 0),
        (0, range(4, 5), 1),  # one line below: scroll by one
        (0, range(3, 4), 0),  # visible already
        (5, range(2, 3), 2),  # above: it becomes the first line
        (0, range(2, 8), 2),  # longer than the window: its beginning
    ],
)
def test_ten_lines_in_four_rows(offset: int, keep: range | None, expected: int) -> None:
    assert visible_from(offset, 10, 4, keep) == expected


@given(st.integers(-5, 50), st.integers(0, 30), st.integers(0, 12), st.integers(0, 30))
def test_a_kept_line_is_always_visible(offset: int, count: int, height: int, line: int) -> None:
    first = visible_from(offset, count, height, range(line, line + 1))
    assert 0 <= first <= max(0, count - height)
    if height and line < count:
        assert first <= line < first + height


def test_the_last_row_counts_what_follows_itself_included() -> None:
    lines = [((f"line {i}", "text"),) for i in range(10)]
    shown = [plain(line).strip() for line in scrolled(lines, 2, 4, 40, "j k")]
    assert shown == ["line 2", "line 3", "line 4", "↓ 5 more lines  j k"]
    assert [plain(line) for line in scrolled(lines, 6, 4, 40, "j k")] == [f"line {i}" for i in range(6, 10)]
    assert scrolled([blank(3)], 0, 0, 3, "") == []
