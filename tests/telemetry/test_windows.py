"""Samples in a rolling window against a plain list, and percentiles worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotdeck.engine.telemetry import windows
from slotdeck.engine.telemetry.windows import Samples, joined, percentile, percentiles


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=60), st.integers(-2, 40), st.integers(1, 5))
def test_a_window_holds_what_was_stamped_since(steps: list[tuple[int, int]], since: int, chunk: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(windows, "CHUNK", chunk)
        samples, plain, time = Samples(horizon=1e9), [], 0
        for later, value in steps:
            time += later
            samples.append(time, value)
            plain.append((time, value))
        assert joined(samples.since(since)).tolist() == [value for stamp, value in plain if stamp >= since]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=80))
def test_nothing_younger_than_the_horizon_is_forgotten(steps: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(windows, "CHUNK", 4)
        samples, stamps = Samples(horizon=10), []
        for later in steps:
            stamps.append((stamps[-1] if stamps else 0) + later)
            samples.append(stamps[-1], stamps[-1])
        young = [stamp for stamp in stamps if stamp >= stamps[-1] - 10]
        kept = joined(samples.since(-1)).tolist()
        assert kept[len(kept) - len(young) :] == young


def test_what_is_older_than_the_horizon_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "CHUNK", 4)
    samples = Samples(horizon=10)
    for time in range(101):
        samples.append(time, time)
    assert joined(samples.since(0)).tolist() == list(range(88, 101)), "88 to 91 share an array, and 91 is young enough"


def test_what_was_read_does_not_change_with_later_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "CHUNK", 4)
    samples = Samples(horizon=5)
    for time in range(6):
        samples.append(time, time)
    read = samples.since(0)
    for time in range(6, 40):
        samples.append(time, time)
    assert joined(read).tolist() == [0, 1, 2, 3, 4, 5]


def test_percentiles_are_exact_and_unknown_without_values() -> None:
    assert percentile([1.0, 2.0, 3.0, 4.0, 5.0], 50) == 3.0
    assert percentile([0.0, 1.0], 95) == pytest.approx(0.95)
    assert percentiles([3.0, 1.0, 2.0], 0, 50, 100) == [1.0, 2.0, 3.0]
    assert percentile([], 50) is None
    assert percentiles([], 50, 95, 100) == [None, None, None]
