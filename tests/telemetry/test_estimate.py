"""The estimate of a waiting request, against cases that can be worked out by hand."""

from __future__ import annotations

import pytest

from slotdeck.engine.telemetry.estimate import MAX_RETRY_AFTER, Pace, Running, retry_after, wait_estimates
from slotdeck.engine.telemetry.frame_builder import estimates
from tests.support.core_engine import Engine

PACE = Pace(output=100, prompt=200, gap=0.05, prompt_per_second=400)
USUAL = 200 / 400 + 100 * 0.05


def test_it_counts_down_with_what_runs() -> None:
    for output in (0, 50, 90):
        running = [Running(prefill_left=1, output=output, max_output=500)]
        (estimate,) = wait_estimates(running, 1, 1, PACE)
        assert estimate == pytest.approx((100 - output) * 0.05 + 1 / 400)


def test_the_second_in_the_queue_waits_for_the_first() -> None:
    running = [Running(1, 80, 500), Running(1, 20, 500)]
    first, second, third = wait_estimates(running, 3, 2, PACE)
    assert first == pytest.approx(1.0, abs=0.01)
    assert second == pytest.approx(4.0, abs=0.01)
    assert third == pytest.approx(1.0 + USUAL, abs=0.01)


def test_slots_that_drain_get_no_successor() -> None:
    running = [Running(1, 80, 500), Running(1, 60, 500), Running(1, 40, 500), Running(1, 20, 500)]
    (estimate,) = wait_estimates(running, 1, 2, PACE)
    assert estimate == pytest.approx(3.0, abs=0.01), "two must end before the third's slot is free for somebody"


def test_who_has_written_more_than_usual_is_given_half_of_what_is_left() -> None:
    (estimate,) = wait_estimates([Running(1, 300, 500)], 1, 1, PACE)
    assert estimate == pytest.approx(100 * 0.05, abs=0.01)


def test_a_static_batch_lets_nobody_in_before_its_longest_has_ended() -> None:
    running = [Running(1, 80, 500), Running(1, 20, 500)]
    first, second, third = wait_estimates(running, 3, 2, PACE, whole_batches=True)
    assert first == second == pytest.approx(4.0, abs=0.01)
    assert third == pytest.approx(4.0 + USUAL, abs=0.01)


@pytest.mark.parametrize("pace", [Pace(None, None, 0.05, None), Pace(100, 200, None, 400)])
def test_nothing_is_claimed_before_anything_has_finished(pace: Pace) -> None:
    assert wait_estimates([Running(1, 0, 10)], 2, 1, pace) == [None, None]


def test_a_pace_without_prefill_counts_the_output_alone() -> None:
    pace = Pace(output=100, prompt=None, gap=0.05, prompt_per_second=None)
    assert wait_estimates([Running(500, 40, 500)], 2, 1, pace) == pytest.approx([3.0, 8.0])


def test_a_request_about_to_end_still_needs_one_more_token() -> None:
    (estimate,) = wait_estimates([Running(0, 500, 500)], 1, 1, PACE)
    assert estimate == pytest.approx(0.05)


def test_the_most_that_a_request_may_write_bounds_what_it_usually_writes() -> None:
    (estimate,) = wait_estimates([Running(0, 10, 30)], 1, 1, PACE)
    assert estimate == pytest.approx(20 * 0.05)


def test_many_running_end_in_the_order_of_what_is_left_to_them() -> None:
    running = [Running(0, output, 500) for output in (10, 20, 90, 50, 80, 30)]
    found = wait_estimates(running, 3, 6, PACE)
    assert found == pytest.approx([10 * 0.05, 20 * 0.05, 50 * 0.05])


def test_free_slots_are_there_at_once_and_for_one_each() -> None:
    assert wait_estimates([Running(0, 80, 500)], 3, 2, PACE) == pytest.approx([0.0, 1.0, USUAL])
    assert wait_estimates([], 2, 1, PACE) == pytest.approx([0.0, USUAL])


def test_a_batch_that_has_ended_lets_a_whole_one_in() -> None:
    assert wait_estimates([], 3, 2, PACE, whole_batches=True) == pytest.approx([0.0, 0.0, USUAL])


@pytest.mark.parametrize(
    ("wait", "seconds"),
    [(None, 1), (0.0, 1), (0.4, 1), (1.6, 2), (7.2, 7), (1e6, MAX_RETRY_AFTER)],
)
def test_retry_after_is_the_wait_in_whole_seconds_within_bounds(wait: float | None, seconds: int) -> None:
    assert retry_after(wait, 0) == seconds
    assert retry_after(wait, 3) == seconds + 3


def test_who_waits_for_the_pool_is_promised_nothing() -> None:
    engine = Engine(blocks=8, context=128, slots=4)
    for _ in range(4):
        engine.add(24, output=60)
    engine.step()
    assert engine.scheduler.waiting, "the pool has room for three"
    assert len(engine.scheduler.admitted()) < 4
    assert set(estimates(engine.scheduler, PACE)) == {None}


def test_nobody_is_promised_a_slot_beside_a_preempted_request() -> None:
    engine = Engine(blocks=8, context=128, slots=2)
    for _ in range(3):
        engine.add(40, output=60)
    for _ in range(60):
        engine.step()
        if engine.scheduler.preempted:
            break
    assert engine.scheduler.preempted
    assert estimates(engine.scheduler, PACE) == [None]
