"""The estimate of a waiting request, against cases that can be worked out by hand."""

from __future__ import annotations

import pytest

from slotdeck.engine.telemetry.estimate import Pace, Running, wait_estimates
from slotdeck.engine.telemetry.frame_builder import estimates
from tests.support.core_engine import Engine

PACE = Pace(output=100, prompt=200, gap=0.05, prompt_per_second=400)
USUAL = 200 / 400 + 100 * 0.05


def test_it_counts_down_with_what_runs() -> None:
    for output in (0, 50, 90):
        running = [Running(prefill_left=1, output=output, most_output=500)]
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


def test_nothing_is_claimed_before_anything_has_finished() -> None:
    assert wait_estimates([Running(1, 0, 10)], 2, 1, Pace(None, None, None, None)) == [None, None]


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
