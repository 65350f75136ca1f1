"""Findings, and the windows of frames that the doctor's rules read."""

from __future__ import annotations

import pytest

from slotdeck.console.advice.finding import Finding, bounded, cost_text, power_of_two
from slotdeck.console.advice.window import Window, seconds_since_change, settled_frames
from slotdeck.engine.settings import SETTINGS
from slotdeck.engine.telemetry.frame import (
    EngineInfo,
    Frame,
    PoolInfo,
    WindowInfo,
)
from tests.support.doctor_frames import WELL, frame, host, limits, run, slot


@pytest.mark.parametrize(("value", "power"), [(0.3, 1), (1, 1), (1.9, 1), (2, 2), (3.9, 2), (64, 64), (127.9, 64)])
def test_power_of_two_is_the_largest_below(value: float, power: int) -> None:
    assert power_of_two(value) == power


def test_a_bounded_value_stays_in_the_range_of_its_setting() -> None:
    setting = SETTINGS["slots"]
    assert setting.minimum is not None
    assert setting.maximum is not None
    assert bounded("slots", -3) == setting.minimum
    assert bounded("slots", 7) == 7
    assert bounded("slots", 10**9) == setting.maximum


@pytest.mark.parametrize(
    ("cost", "text"),
    [(None, "costs users an answer"), (0.49, ""), (0.5, "costs users 0 s"), (119.4, "costs users 119 s"),
     (119.5, "costs users 2 min"), (600.0, "costs users 10 min")],
)  # fmt: skip
def test_a_cost_is_told_in_seconds_then_minutes(cost: float | None, text: str) -> None:
    assert cost_text(Finding("queue", "warn", "t", (), "r", "e", cost=cost)) == text


def test_a_long_window_reads_the_percentiles_over_ten_minutes() -> None:
    long = WindowInfo(seconds=600, **WELL)
    assert Window(run(120)).latency.seconds == 60
    assert Window(run(121)).latency == long


def test_after_a_change_they_are_read_only_when_nothing_of_before_is_in_them() -> None:
    before = run(2, limits=limits(slots=3))
    for seconds, wanted in ((589, 60), (590, 600)):
        after = [frame(2), frame(2 + seconds)]
        assert Window([*before, *after]).latency.seconds == wanted


def test_a_frame_counts_for_ten_seconds_at_most_and_never_backwards() -> None:
    frames = [frame(0, waiting_count=2), frame(4, waiting_count=1), frame(100, waiting_count=5), frame(99)]
    assert Window(frames).person_seconds(lambda one: one.waiting_count or 0) == 2 * 4 + 1 * 10


def test_a_change_is_settled_after_a_minute() -> None:
    old, new = run(100), limits(slots=8)
    for seconds, settled in ((59, False), (60, True)):
        frames = [*old, frame(100, limits=new), frame(100 + seconds, limits=new)]
        assert (settled_frames(frames)[0].limits.slots == 8) is settled
        assert seconds_since_change(frames) == (None if settled else seconds)
    assert seconds_since_change(old[:5]) is None


def test_of_short_parts_the_longest_is_judged_and_of_long_ones_the_newest() -> None:
    parts = [(20, 1), (30, 2), (10, 3), (5, 4)]
    frames: list[Frame] = []
    for seconds, slots in parts:
        start = len(frames)
        frames += [frame(start + i, limits=limits(slots=slots)) for i in range(seconds)]
    assert settled_frames(frames)[0].limits.slots == 2
    long = [frame(i, limits=limits(slots=1 + i // 70)) for i in range(215)]
    assert settled_frames(long)[0].limits.slots == 3
    edge = [frame(i, limits=limits(slots=1 if i < 90 else 2 if i < 151 else 3)) for i in range(160)]
    assert settled_frames(edge)[0].limits.slots == 2, "60 s are enough"


def test_counters_are_counted_from_the_first_frame_or_from_the_start_of_the_engine() -> None:
    old = [frame(i, boot_id="zero") for i in range(5)]
    new = [frame(10 + i, counters={"finished": 7 + i, "stalled_seconds": 1.5}) for i in range(3)]
    assert Window(new).increase("finished") == 2
    window = Window([*old, *new])
    assert (window.increase("finished"), window.increase_seconds("stalled_seconds")) == (9, 1.5)
    assert (window.boots, window.whole_seconds, window.seconds) == (2, 12.0, 2.0)
    assert [one.boot_id for one in window.final_frames] == ["zero"]
    assert [one.boot_id for one in Window([*old, *new], engine_gone=True).final_frames] == ["zero", "one"]


def test_a_pool_fits_if_it_leaves_a_fifth_of_the_free_memory() -> None:
    pool = PoolInfo(total=1000, block_size=16, bytes_per_token=90, scale_bytes_per_token=10)
    window = Window(run(2, pool=pool, host=host(memory_total=2_000_000, memory_used=1_000_000)))
    assert window.fits_memory(1000 + 8000) is True
    assert window.fits_memory(1000 + 8001) is False
    gpu = EngineInfo(device="cuda:0")
    on_gpu = host(gpu_memory_total=3_000_000, gpu_memory_used=1_000_000)
    window = Window(run(2, pool=pool, host=on_gpu, engine=gpu))
    assert window.fits_memory(1000 + 16_000) is True
    assert window.fits_memory(1000 + 16_001) is False
    assert Window(run(2, pool=pool, host=host(memory_used=None))).fits_memory(5) is None


def test_the_usual_size_of_a_request_is_enough_for_three_quarters() -> None:
    slots = tuple(slot(i, blocks=10 * (i + 1)) for i in range(4))
    assert Window(run(2, slots=slots)).request_size == 40 * 16
    assert Window(run(2, slots=slots[:3])).request_size == 30 * 16
    assert Window(run(2, slots=())).request_size is None


def test_the_fullest_moment_of_the_pool_counts() -> None:
    live = {0: 100, 1: 900, 2: 300}
    window = Window(run(3, pool=lambda i: PoolInfo(total=1000, live=live[i], block_size=16)))
    assert window.max_pool_usage == 0.9
    assert window.share(lambda one: (one.pool.live or 0) > 100) == pytest.approx(2 / 3)
    assert window.mean(lambda one: one.pool.live) == pytest.approx(1300 / 3)
