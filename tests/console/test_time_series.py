"""The last minutes: samples, changes of settings, and the plots and slot timeline drawn from them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotdeck.console.drawing.cells import line_width, plain
from slotdeck.console.drawing.plot import column_rows, linear, logarithmic, nice_top, resample
from slotdeck.console.sections.plots import plot_lines
from slotdeck.console.sections.slot_timeline import timeline_lines
from slotdeck.console.state.store import Store
from slotdeck.console.state.time_series import SECONDS, TimeSeriesBuilder, changed_settings
from slotdeck.engine.telemetry.frame import Frame, SlotInfo
from tests.support import frames
from tests.support.console_app import GONE


def at(seconds: float, **changes: object) -> Frame:
    return frames.frame(time=frames.START + seconds, events=(), **changes)


def run(length: float, step: float = 0.25, **changes: object) -> TimeSeriesBuilder:
    builder = TimeSeriesBuilder()
    for number in range(int(length / step)):
        builder.add(at(number * step, **changes))
    return builder


def test_one_sample_a_second_and_ten_minutes_at_most() -> None:
    assert len(run(10).series.samples) == 10
    assert len(run(SECONDS + 60, 1).series.samples) == SECONDS


def test_the_series_stays_the_same_object_within_a_second() -> None:
    store = Store()
    store.apply(at(0))
    first = store.view.series
    store.apply(at(0.5))
    assert store.view.series is first
    store.apply(at(1.0))
    assert store.view.series is not first
    store.apply(GONE)
    assert len(store.view.series.samples) == 2


def test_the_state_of_highest_priority_within_a_second_is_kept() -> None:
    builder = TimeSeriesBuilder()
    builder.add(at(0))
    preempted = SlotInfo(slot=0, state="preempted", request_id="r0", user="laptop")
    builder.add(at(0.25, slots=(preempted,)))
    builder.add(at(0.5))
    builder.add(at(1.0))
    assert builder.series.samples[-1].slots[0].state == "preempted"


def test_changes_of_settings_are_marked_whoever_made_them() -> None:
    builder = run(20)
    builder.add(at(20, limits=frames.limits_of(revision=4, slots=8)))
    builder.add(at(21, limits=frames.limits_of(revision=5, slots=8, next_mode="serial")))
    assert [text for _, text in builder.series.changes] == ["slots 4→8", "mode continuous→serial"]
    text = "\n".join(plain(line) for line in plot_lines(builder.series, 80, 17))
    assert "± mode continuous→serial" in text
    assert text.splitlines()[-1].count("±") >= 2
    assert changed_settings(frames.limits_of(), frames.limits_of(revision=9)) == []


def test_a_restart_is_neither_a_change_nor_a_preemption() -> None:
    store = Store()
    store.apply(frames.preempting())
    fresh = frames.empty().model_copy(update={"boot_id": "boot-2", "time": frames.START + 5})
    store.apply(fresh.model_copy(update={"limits": frames.limits_of(revision=0, slots=9)}))
    assert store.view.series.changes == ()
    assert store.view.series.samples[-1].preempted == 0


def test_plots_show_the_newest_value_the_maximum_of_the_scale_and_the_span() -> None:
    builder = run(90, 1)
    lines = [plain(line) for line in plot_lines(builder.series, 60, 12)]
    assert lines[0].startswith(" last 2 min")
    assert any("TTFT p95" in line and "1.80s" in line for line in lines)
    assert any("max 2.00s" in line for line in lines)
    assert any("KV live" in line and "26%" in line for line in lines)


def test_unknown_values_leave_holes_and_a_dash() -> None:
    unknown = frames.MINUTE.model_copy(update={"ttft_p95": None})
    lines = [plain(line) for line in plot_lines(run(30, 1, minute=unknown).series, 60, 12)]
    line = next(line for line in lines if "TTFT p95" in line)
    assert line.split() == ["TTFT", "p95", "–"]


def test_the_timeline_shows_state_and_name_and_what_does_not_fit() -> None:
    series = run(60, 1).series
    lines = [plain(line) for line in timeline_lines(series, 4, 70, 5)]
    assert "━laptop━━━" in lines[1]
    assert "▸▸▸▸" in lines[2]
    assert lines[4].split() == ["3"]
    few = [plain(line) for line in timeline_lines(series, 4, 70, 4)]
    assert "2 more slots" in few[-1]


@given(st.integers(1, 200), st.integers(0, 40), st.integers(0, 130), st.integers(0, 30))
def test_every_line_is_exact(cells: int, rows: int, length: int, slots: int) -> None:
    series = run(length, 1).series
    for lines in (plot_lines(series, cells, rows), timeline_lines(series, slots, cells, rows)):
        assert len(lines) == rows
        assert all(line_width(line) == cells for line in lines)


@given(st.lists(st.one_of(st.none(), st.floats(0, 1e9)), max_size=300), st.integers(1, 8), st.integers(1, 100))
def test_columns_have_a_cell_for_each_value(values: list[float | None], rows: int, cells: int) -> None:
    shown = resample(values, cells)
    assert len(shown) == min(len(values), cells)
    top = nice_top(max((v for v in shown if v is not None), default=0))
    for heights in (linear(shown, top), logarithmic(shown, 0.001, top)):
        drawn = column_rows(heights, rows)
        assert len(drawn) == rows
        assert {len(row) for row in drawn} == {len(shown)}
        for place, value in enumerate(shown):
            assert (drawn[-1][place] == " ") == (value is None)


@pytest.mark.parametrize(("value", "top"), [(0, 1), (0.096, 0.1), (1.8, 2), (2.0, 2), (61, 100), (450, 500)])
def test_scales_end_at_round_numbers(value: float, top: float) -> None:
    assert nice_top(value) == pytest.approx(top)
