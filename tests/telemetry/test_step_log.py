"""The log of steps: what each computed, and the pauses that are none of the engine's doing."""

from __future__ import annotations

import json

import pytest

from slotdeck.engine.telemetry import step_log
from slotdeck.engine.telemetry.step_log import StepLog, StepWork, read_samples, work_of
from tests.support.core_engine import Engine


def test_work_counts_what_a_step_computes() -> None:
    engine = Engine(budget=64)
    engine.add(100, output=3)
    first = engine.plan()
    assert work_of(first) == StepWork(0, 64, 1, 0, 0, 64 * 65 // 2)
    engine.commit(first)
    second = engine.plan()
    assert work_of(second) == StepWork(0, 36, 1, 1, 0, sum(range(65, 101)))
    engine.commit(second)
    engine.add(10, output=1)
    third = engine.plan()
    assert work_of(third) == StepWork(1, 10, 1, 1, 100, sum(range(1, 11)))


def test_a_pause_is_told_from_the_time_between_two_steps() -> None:
    engine, log = Engine(), StepLog()
    engine.add(10, output=2)
    for now in (1.0, 2.5):
        log.on_step(engine.step(), 1.0, now)
    engine.add(10, output=2)
    log.on_step(engine.step(), 1.0, 60.0)
    samples, cursor = log.since(0)
    assert [sample.between for sample in samples] == [None, pytest.approx(0.5), None]
    assert [sample.seconds for sample in samples] == [1.0, 1.0, 1.0]
    assert cursor == 3
    assert log.since(2)[0] == samples[2:]
    assert log.since(3) == ([], 3)
    assert log.since(99) == ([], 3)


def test_the_oldest_steps_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_log, "MAX_STEPS", 2)
    engine, log = Engine(), StepLog()
    engine.add(10, output=5)
    for now in range(5):
        log.on_step(engine.step(), 0.5, float(now))
    samples, cursor = log.since(0)
    assert [sample.ended for sample in samples] == [3.0, 4.0]
    assert cursor == 5


def test_samples_come_back_from_json() -> None:
    log, engine = StepLog(), Engine()
    engine.add(10, output=3)
    for now in (1.0, 2.0):
        log.on_step(engine.step(), 0.5, now)
    samples, _ = log.since(0)
    assert read_samples(json.loads(json.dumps(samples))) == samples
    assert isinstance(read_samples(json.loads(json.dumps(samples)))[0].work, StepWork)
    for nonsense in ([[1, 2]], [[[1, 2], 1.0, 1.0, None]], [5]):
        with pytest.raises(ValueError, match="no measured steps"):
            read_samples(nonsense)


def test_a_step_in_which_one_of_two_requests_ends_leaves_work_for_the_next() -> None:
    engine, log = Engine(), StepLog()
    engine.add(10, output=1)
    engine.add(10, output=5)
    for now in (1.0, 2.5):
        log.on_step(engine.step(), 1.0, now)
    assert [sample.between for sample in log.since(0)[0]] == [None, pytest.approx(0.5)]
