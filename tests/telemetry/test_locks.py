"""Work that grows with the length of answers is done outside the locks that the engine's steps need."""

from __future__ import annotations

from typing import Any

import pytest

from slotdeck.engine.telemetry import telemetry as telemetry_module
from slotdeck.engine.telemetry.frame import EngineInfo, HostInfo, LimitInfo
from slotdeck.engine.telemetry.frame_builder import build_frame, take_snapshot
from slotdeck.engine.telemetry.requests import log as log_module
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
    """Counts how often more than a screenful of gaps is read."""

    read = 0

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        self.read += isinstance(index, slice) and len(found) > 100
        return found

    def copy(self) -> list[float]:
        self.read += 1
        return super().copy()

    def __iter__(self) -> Any:
        self.read += 1
        return super().__iter__()


def test_the_gaps_of_a_long_answer_are_read_after_the_snapshot() -> None:
    """The engine's lock is held while the snapshot is taken, and no longer while the frame is built from it."""
    run = Run()
    run.submit("a", prompt=4, output=100)
    run.step(2)
    (request,) = run.scheduler.running
    gaps = request.gaps = Gaps([9.0] * 400 + [0.1] * 3800 + [0.5] * 296)
    seen = take_snapshot(run.scheduler, run.telemetry.pace(), (1, 2), run.now)
    assert gaps.read == 0
    gaps += [7.0] * 4000  # the loop goes on meanwhile
    engine, limits, host = EngineInfo(), LimitInfo(), HostInfo()
    frame, _ = build_frame(
        seen, run.telemetry, 0, boot_id="b", sequence=1, engine=engine, limits=limits, host=host
    )  # fmt: skip
    assert gaps.read == 1
    (slot,) = [slot for slot in frame.slots if slot.request_id == "a"]
    assert slot.gaps == (0.5,) * 24
    assert slot.itl_p95 == pytest.approx(0.5), "of the newest 4096, so neither 9 s nor 7 s"
