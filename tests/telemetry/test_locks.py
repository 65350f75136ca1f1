"""Work that grows with the length of answers is done outside the locks that the engine's steps need."""

from __future__ import annotations

from typing import Any

import pytest

from slotdeck.engine.core.request import State
from slotdeck.engine.telemetry import telemetry as telemetry_module
from slotdeck.engine.telemetry.requests import log as log_module
from tests.support.loop_bench import Bench
from tests.support.observed_run import Run


def test_a_request_is_explained_while_the_engine_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Explaining 4,000 gaps takes long. Meanwhile no lock is held, so a step is logged as usual."""
    run = Run(context=2048, blocks=512)
    run.submit("a", prompt=4, output=500)
    run.step(100)
    explained = []

    def spy(*arguments: Any) -> dict[str, Any]:
        free = run.telemetry.requests._lock.acquire(blocking=False)
        assert free, "the log's lock is held, and the loop waits for it with the engine's lock in hand"
        run.telemetry.requests._lock.release()
        run.step(10)
        explained.append(True)
        return explain(*arguments)

    explain = log_module.explain_gaps
    monkeypatch.setattr(log_module, "explain_gaps", spy)
    detail = run.detail("a")
    assert explained
    assert len(detail.gaps) == 99, "the detail is of the instant at which it was asked for"
    assert detail.output_tokens == 100


def test_a_copy_of_a_request_does_not_change_with_later_steps() -> None:
    run = Run(blocks=5, context=80)
    run.submit("old", prompt=16, output=60)
    run.submit("new", prompt=16, output=40)
    while not run.scheduler.preempted:
        run.step()
    record = run.telemetry.requests._live["new"].copy(run.now)
    before = (list(record.tokens), list(record.chunks), list(record.stalls), dict(record.facts))
    run.finish()
    assert (list(record.tokens), record.chunks, list(record.stalls), record.facts) == before
    assert record.stalls[-1].ended is None


def test_percentiles_of_the_windows_are_computed_while_the_engine_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run()
    run.submit("a", prompt=4, output=100)
    run.step(20)
    calls = []

    def spy(arrays: Any) -> Any:
        assert run.telemetry._lock.acquire(blocking=False), "samples are copied under the lock"
        run.telemetry._lock.release()
        if not calls:
            run.step(5)
        calls.append(True)
        return joined(arrays)

    joined = telemetry_module.joined
    monkeypatch.setattr(telemetry_module, "joined", spy)
    minute, _ = run.telemetry.windows()
    assert len(calls) == 10
    assert minute.itl_count == 19, "the window is of the instant at which it was asked for"
    run.telemetry.rates()
    assert len(calls) == 12


class Gaps(list[float]):
    """Notes whether the engine's lock is held when more than a screenful of gaps is read."""

    def __init__(self, values: list[float], bench: Bench) -> None:
        super().__init__(values)
        self.bench = bench
        self.read_free = self.read_locked = 0

    def _note(self) -> None:
        if self.bench.loop._state.lock.locked():
            self.read_locked += 1
        else:
            self.read_free += 1

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        if isinstance(index, slice) and len(found) > 100:
            self._note()
        return found

    def copy(self) -> list[float]:
        self._note()
        return super().copy()

    def __iter__(self) -> Any:
        self._note()
        return super().__iter__()


def test_a_frame_reads_the_gaps_of_a_long_answer_without_the_lock() -> None:
    bench = Bench()
    bench.runner.allow(0)
    bench.loop.start()
    try:
        bench.submit("a", output=200)
        bench.steps(2)
        (request,) = bench.loop._state.scheduler.running
        assert request.state is State.RUNNING
        gaps = request.gaps = Gaps([0.1] * 3900 + [0.5] * 400, bench)
        frame, _ = bench.loop.frame(1, 0)
        assert gaps.read_locked == 0
        assert gaps.read_free == 1
        slot = next(slot for slot in frame.slots if slot.request_id == "a")
        assert len(slot.gaps) == 24
        assert slot.itl_p95 == pytest.approx(0.5)
    finally:
        bench.release()
        bench.loop.stop()
