"""The engine loop when something breaks: a row, a step, the loop itself, a step that never returns."""

from __future__ import annotations

import threading

import pytest

from slotdeck.engine.core.step import ModelRunnerOutput
from slotdeck.engine.loop.engine_loop import EngineUnavailableError
from slotdeck.engine.settings import SettingsError
from tests.support.loop_bench import PATIENCE, Bench, balanced


def test_a_bad_row_fails_alone(bench: Bench) -> None:
    bench.runner.bad = {"bad"}
    bench.submit("good", output=30)
    bench.submit("bad")
    bench.wait_for_end("good", "bad")
    assert bench.client.ends["bad"].error == "NaN logits"
    assert bench.client.ends["good"].finish_reason == "length"


def test_a_failed_step_fails_its_requests_and_the_engine_goes_on(bench: Bench) -> None:
    bench.runner.allow(0)
    bench.submit("a", output=200)
    bench.steps(2)
    bench.submit("later")
    bench.runner.faults = 1
    bench.release()
    bench.wait_for_end("a", "later")
    assert "RuntimeError" in (bench.client.ends["a"].error or "")
    assert bench.client.ends["later"].finish_reason == "length"
    frame, _ = bench.loop.frame(0, 0)
    assert frame.health == "ok"
    assert any(event.kind == "engine_fault" for event in frame.events)
    assert frame.pool.live == 0
    assert balanced(bench)


def test_con_16_three_faults_in_a_row_stop_the_engine_and_everybody_is_told() -> None:
    bench = Bench(slots=1)
    bench.runner.faults = 3
    bench.runner.allow(0)
    bench.loop.start()
    for name in "abcde":
        bench.submit(name)
    bench.release()
    bench.wait_for_end(*"abcde")
    assert all(bench.client.ends[name].error for name in "abcde")
    health, reason = bench.loop.health()
    assert health == "fault"
    assert "3 steps in a row" in (reason or "")
    with pytest.raises(EngineUnavailableError, match="stopped"):
        bench.submit("f")
    bench.loop.stop()


def test_con_16_a_wedged_step_is_noticed_and_told() -> None:
    wedged = threading.Event()
    bench = Bench(step_timeout=0.2, on_wedged=lambda reason: wedged.set())
    bench.runner.allow(0)
    bench.loop.start()
    bench.submit("a")
    bench.submit("b")
    assert wedged.wait(PATIENCE)
    assert bench.loop.health()[0] == "fault"
    assert bench.client.ends["a"].error
    assert bench.client.ends["b"].error
    bench.client.ends.clear()
    bench.release()
    bench.loop.stop()


@pytest.mark.parametrize("where", ["schedule", "update_from_output", "result"])
def test_con_16_a_fault_of_the_loop_itself_is_told_to_everybody(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(slots=1)
    bench.runner.allow(0)
    bench.loop.start()
    for name in "abc":
        bench.submit(name, output=50)
    bench.steps(0)

    def broken(*_arguments: object) -> None:
        raise KeyError("injected")

    if where == "result":
        monkeypatch.setattr(bench.runner, "run", lambda scheduler_output: ModelRunnerOutput())
        bench.release()
    else:
        monkeypatch.setattr(bench.loop._state.scheduler, where, broken)
        bench.release()
    bench.wait_for_end(*"abc")
    health, reason = bench.loop.health()
    assert health == "fault"
    assert "KeyError" in (reason or "")
    with pytest.raises(EngineUnavailableError):
        bench.submit("d")
    with pytest.raises(SettingsError):
        bench.loop.change({"kv_tokens": 1024}, revision=None, source="test")


def test_a_failed_step_forgets_host_copies_and_cached_prefixes(bench: Bench) -> None:
    bench.submit("a", prompt=40)
    bench.wait_for_end("a")
    assert (bench.loop.frame(0, 0)[0].pool.cached or 0) > 0
    bench.runner.faults = 1
    bench.submit("b")
    bench.wait_for_end("b")
    assert bench.runner.forgotten == 1
    assert bench.loop.frame(0, 0)[0].pool.cached == 0


@pytest.mark.parametrize("where", ["schedule", "update_from_output", "deliver"])
def test_the_watchdog_notices_a_hang_anywhere_in_a_turn(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wedged, go_on = threading.Event(), threading.Event()
    reasons: list[str] = []

    def note(reason: str) -> None:
        reasons.append(reason)
        wedged.set()

    bench = Bench(step_timeout=0.2, on_wedged=note)
    state = bench.loop._state
    owner, name = (state, "deliver") if where == "deliver" else (state.scheduler, where)
    inner = getattr(owner, name)

    def hangs(*arguments: object) -> object:
        if threading.current_thread() is bench.loop._steps.thread:
            assert go_on.wait(PATIENCE)
        return inner(*arguments)

    monkeypatch.setattr(owner, name, hangs)
    bench.loop.start()
    locked = threading.Thread(target=bench.submit, args=("a",))
    locked.start()
    try:
        assert wedged.wait(PATIENCE), "what hangs under the lock is told too"
        assert reasons == [bench.loop.health()[1]]
        assert bench.loop.health()[0] == "fault"
        assert "the engine loop is" in (bench.loop.health()[1] or "")
    finally:
        bench.client.ends.clear()
        go_on.set()
        locked.join(PATIENCE)
        bench.loop.stop()


def test_a_step_that_comes_back_after_the_stop_changes_nothing_any_more(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(step_timeout=0.2)
    bench.runner.allow(0)
    bench.loop.start()
    bench.submit("a", output=50)
    bench.steps(2)
    bench.submit("waiting")
    bench.loop.stop("the server was stopped")
    assert bench.client.ends["a"].error
    assert bench.client.ends["waiting"].error
    bench.release()
    bench.loop._steps.thread.join(PATIENCE)
    assert not bench.loop._steps.thread.is_alive()
    assert "the engine loop failed" not in caplog.text
    assert len(bench.client.tokens["a"]) == 2


def test_health_and_refusals_do_not_wait_for_the_wedged_lock_holder() -> None:
    """Only reading the scheduler needs its lock; health does not."""
    bench = Bench()
    bench.loop.start()
    with bench.loop._state.lock:
        assert bench.loop.health() == ("ok", None)
    bench.loop.stop()
