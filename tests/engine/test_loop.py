"""The engine loop with a model-free runner: hand-over, cancellation, live changes, drain, accounting."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from slotdeck.engine.core.events import QueueFullError
from slotdeck.engine.core.request import Request, SamplingParams, Timeline
from slotdeck.engine.loop import read_model
from slotdeck.engine.loop.engine_loop import EngineUnavailableError
from slotdeck.engine.loop.live_changes import RevisionConflictError
from slotdeck.engine.settings import SettingsError
from tests.support.loop_bench import PATIENCE, Bench, balanced


def test_every_token_is_handed_over_once_and_in_order(bench: Bench) -> None:
    for name in "abcd":
        bench.submit(name, prompt=10, output=20)
    bench.wait_for_end(*"abcd")
    for name in "abcd":
        assert bench.client.tokens[name] == list(range(10, 30))
        assert bench.client.ends[name].finish_reason == "length"
    assert balanced(bench)


def test_met_04_a_frame_tells_the_truth_while_a_step_runs(bench: Bench) -> None:
    bench.runner.allow(0)
    bench.submit("a", prompt=40, output=200)
    bench.steps(0)
    bench.submit("b")
    bench.submit("c")
    bench.submit("d")
    frame, _ = bench.loop.frame(1, 0)
    assert frame.running == 1
    assert frame.waiting_count == 3
    assert [waiting.user for waiting in frame.waiting] == ["b", "c", "d"]
    assert frame.slots[0].user == "a"
    assert frame.pool.live is not None
    assert frame.pool.free is not None
    assert frame.pool.cached is not None
    assert frame.pool.live + frame.pool.cached + frame.pool.free == frame.pool.total == 512
    assert balanced(bench)


def test_con_12_a_full_queue_refuses_at_once_while_a_step_runs(bench: Bench) -> None:
    bench.runner.allow(0)
    bench.submit("a", output=100)
    bench.steps(0)
    for name in "bcdef":
        bench.submit(name)
    with pytest.raises(QueueFullError):
        bench.submit("g")
    assert bench.loop.frame(0, 0)[0].counters.rejected == 1
    assert balanced(bench)


def test_con_01_cancel_of_a_running_request_ends_with_the_step(bench: Bench) -> None:
    bench.runner.allow(0)
    bench.submit("a", output=200)
    bench.steps(3)
    assert bench.loop.cancel("a")
    assert "a" not in bench.client.ends
    bench.release()
    bench.wait_for_end("a")
    assert bench.client.ends["a"].finish_reason == "cancelled"
    assert not bench.loop.cancel("a")
    assert bench.loop.frame(0, 0)[0].pool.live == 0


def test_con_03_cancel_in_the_queue_is_immediate_and_counts_as_given_up(bench: Bench) -> None:
    bench.runner.allow(0)
    bench.submit("a", output=100)
    bench.submit("b", output=100)
    bench.steps(3)
    bench.submit("c")
    assert bench.loop.cancel("c")
    assert bench.client.ends["c"].finish_reason == "cancelled"
    assert bench.loop.frame(0, 0)[0].counters.gave_up_waiting == 1


def test_a_stop_string_ends_the_request_and_drops_what_is_beyond(bench: Bench) -> None:
    bench.runner.allow(0)
    bench.submit("a", output=200)
    bench.steps(6)
    bench.loop.finish("a", 3)
    bench.release()
    bench.wait_for_end("a")
    assert bench.client.ends["a"].finish_reason == "stop"
    assert bench.loop.frame(0, 0)[0].counters.finished == 1


def test_drain_refuses_newcomers_and_the_waiting_and_lets_the_running_finish(bench: Bench) -> None:
    bench.runner.allow(0)
    for name in "ab":
        bench.submit(name, output=100)
    bench.steps(3)
    bench.submit("c")
    bench.loop.drain()
    assert bench.client.ends["c"].error
    assert bench.loop.health()[0] == "draining"
    counters = bench.loop.frame(0, 0)[0].counters
    assert (counters.rejected, counters.failed) == (1, 0), "nothing failed: it was never taken"
    assert bench.client.ends["c"].unserved
    with pytest.raises(EngineUnavailableError, match="shutting down"):
        bench.submit("d")
    bench.release()
    bench.wait_for_end("a", "b")
    assert bench.client.ends["a"].finish_reason == "length"


def test_drain_serves_the_further_answers_of_a_call_that_runs() -> None:
    bench = Bench(slots=1)
    bench.loop.start()
    bench.runner.allow(0)
    now = bench.loop.clock()
    params = SamplingParams(max_tokens=5)
    bench.loop.submit(*(Request(name, "user", [1] * 40, params, Timeline(now, now)) for name in "abc"))
    bench.submit("d")
    bench.steps(0)
    bench.loop.drain()
    bench.release()
    bench.wait_for_end(*"abcd")
    assert [bench.client.ends[name].finish_reason for name in "abc"] == ["length"] * 3
    assert bench.client.ends["d"].error
    bench.loop.stop()


def test_stop_fails_what_is_left(bench: Bench) -> None:
    bench.runner.allow(0)
    for name in "abc":
        bench.submit(name, output=200)
    bench.steps(2)
    stopper = threading.Thread(target=bench.loop.stop)
    stopper.start()
    bench.release()
    stopper.join(PATIENCE)
    assert all(name in bench.client.ends for name in "abc")
    assert bench.loop.num_in_flight == 0


def test_settings_change_whole_or_not_at_all(bench: Bench) -> None:
    limits = bench.loop.change({"slots": 4, "budget": 32}, revision=0, source="test")
    assert (limits.revision, limits.slots, limits.budget) == (1, 4, 32)
    for changes, message in [
        ({"slots": 8, "context": 500}, "trained for: at most 400"),
        ({"mode": "fast"}, "mode"),
        ({"slots": 0}, "slots must be between 1 and 256"),
        ({"slots": 64}, "at most 32"),
        ({"slots": "8"}, "slots"),
        ({"slots": 8, "port": 1}, "restart with --port"),
        ({"depth": 1}, "unknown setting"),
    ]:
        with pytest.raises(SettingsError, match=message):
            bench.loop.change(changes, revision=None, source="test")
    assert bench.loop.limits.slots == 4
    assert bench.loop.revision == 1
    with pytest.raises(RevisionConflictError) as caught:
        bench.loop.change({"slots": 2}, revision=0, source="other")
    assert caught.value.revision == 1
    texts = [event.text for event in bench.loop.frame(0, 0)[0].events if event.kind == "setting_changed"]
    assert texts == ["slots 2 → 4 by test", "budget 16 → 32 by test"]


def test_a_request_s_settings_carry_the_revision_that_was_in_force_at_its_admission(bench: Bench) -> None:
    """A change of several settings is one revision; each request is admitted with what was in force then."""
    bench.submit("before")
    bench.wait_for_end("before")
    for revision, budget in ((1, 32), (2, 64)):
        bench.loop.change({"slots": 4, "budget": budget}, revision=None, source="test")
        bench.submit(f"after {revision}")
        bench.wait_for_end(f"after {revision}")
    seen = []
    for name in ("before", "after 1", "after 2"):
        detail = bench.loop.telemetry.requests.detail(name)
        assert detail is not None
        assert detail.settings is not None
        seen.append((detail.settings.revision, detail.settings.slots, detail.settings.budget))
    assert seen == [(0, 2, 16), (1, 4, 32), (2, 4, 64)]


def test_what_settings_can_be_follows_model_pool_and_requests(bench: Bench) -> None:
    def bounds(name: str) -> tuple[int, int, str]:
        found = bench.loop.frame(0, 0)[0].limits.bounds[name]
        return found.least, found.most, found.why

    assert bounds("context") == (64, 400, "the model was trained for no more")
    assert bounds("slots") == (1, 32, "the KV pool has no more blocks")
    assert bounds("kv_tokens")[0] == 256
    bench.loop.change({"kv_tokens": 320}, revision=None, source="test")
    assert bounds("context") == (64, 320, "the KV pool holds no more; make kv_tokens larger first")
    bench.runner.allow(0)
    bench.submit("a", prompt=100, output=150)
    bench.loop.change({"context": 64, "slots": 1}, revision=None, source="test")
    assert bounds("kv_tokens")[0] == 256, "somebody accepted still needs it"
    bench.release()
    bench.wait_for_end("a")
    assert bounds("kv_tokens")[0] == 64


def test_run_01_lowering_slots_while_streaming_loses_nothing(bench: Bench) -> None:
    bench.runner.allow(0)
    bench.submit("a", output=100)
    bench.submit("b", output=100)
    bench.steps(3)
    bench.loop.change({"slots": 1}, revision=None, source="test")
    bench.submit("c")
    bench.release()
    bench.wait_for_end("a", "b", "c")
    assert [len(bench.client.tokens[name]) for name in "abc"] == [100, 100, 5]


def test_met_08_events_come_once_to_each_reader(bench: Bench) -> None:
    bench.submit("a")
    bench.wait_for_end("a")
    first, cursor = bench.loop.frame(0, 0)
    kinds = [event.kind for event in first.events]
    assert kinds == ["admitted", "first_token", "finished"]
    again, _ = bench.loop.frame(1, cursor)
    assert again.events == ()


def test_met_03_windows_count_every_gap_and_every_first_token(bench: Bench) -> None:
    for name in "abc":
        bench.submit(name, output=11)
    bench.wait_for_end(*"abc")
    frame, _ = bench.loop.frame(0, 0)
    assert frame.minute.ttft_count == 3
    assert frame.minute.itl_count == 30
    assert frame.counters.generated_tokens == 33
    assert frame.counters.prompt_tokens == 24
    page = bench.loop.metrics_text().decode()
    assert "slotdeck_inter_token_latency_seconds_count 30.0" in page
    assert 'slotdeck_requests_finished_total{reason="length"} 3.0' in page
    assert "vllm:generation_tokens_total 33.0" in page


def test_without_traffic_percentiles_are_unknown_not_zero() -> None:
    frame, _ = Bench().loop.frame(0, 0)
    assert frame.minute.ttft_p95 is None
    assert frame.ten_minutes.itl_p95 is None
    assert frame.health == "starting"


def test_the_pool_is_resized_between_two_steps_while_people_stream(bench: Bench) -> None:
    bench.runner.allow(0)
    bench.submit("a", output=60)
    bench.submit("b", output=60)
    bench.steps(5)
    done: list[object] = []
    turner = threading.Thread(
        target=lambda: done.append(bench.loop.change({"kv_tokens": 1000}, revision=None, source="test"))
    )
    turner.start()
    assert not done, "a step is running"
    bench.release()
    turner.join(PATIENCE)
    assert bench.loop.pool_tokens == bench.loop.limits.kv_tokens == 1008, "rounded up to whole blocks"
    bench.loop.change({"kv_tokens": 256}, revision=None, source="test")
    assert bench.runner.resized == [63, 16]
    bench.wait_for_end("a", "b")
    assert [len(bench.client.tokens[name]) for name in "ab"] == [60, 60]


def test_run_02_a_pool_that_memory_cannot_hold_is_refused_with_the_maximum(bench: Bench) -> None:
    for size, message in ((1 << 20, "at most 16000 tokens"), (64, "at least 256 tokens")):
        with pytest.raises(SettingsError, match=message):
            bench.loop.change({"kv_tokens": size}, revision=None, source="test")
    assert bench.loop.pool_tokens == 512
    assert bench.loop.revision == 0


def test_context_and_pool_change_together_or_not_at_all(bench: Bench) -> None:
    bench.loop.change({"kv_tokens": 128, "context": 128}, revision=None, source="test")
    assert (bench.loop.pool_tokens, bench.loop.limits.context) == (128, 128)
    bench.loop.change({"kv_tokens": 400, "context": 400}, revision=None, source="test")
    assert (bench.loop.pool_tokens, bench.loop.limits.context) == (400, 400)
    with pytest.raises(SettingsError):
        bench.loop.change({"kv_tokens": 160, "slots": 11}, revision=None, source="test")
    assert (bench.loop.pool_tokens, bench.loop.limits.slots) == (400, 2)


def test_a_mode_asked_for_shows_until_it_is_in_force(bench: Bench) -> None:
    bench.runner.allow(0)
    bench.submit("a", output=10)
    bench.steps(2)
    limits = bench.loop.change({"mode": "serial"}, revision=None, source="test")
    assert (limits.mode, limits.next_mode) == ("continuous", "serial")
    bench.release()
    bench.wait_for_end("a")
    bench.submit("b")
    bench.wait_for_end("b")
    frame, _ = bench.loop.frame(0, 0)
    assert (frame.limits.mode, frame.limits.next_mode) == ("serial", None)


def test_an_idle_engine_takes_a_new_mode_at_once(bench: Bench) -> None:
    bench.loop.change({"mode": "serial"}, revision=None, source="test")
    limits = bench.loop.frame(1, 0)[0].limits
    assert (limits.mode, limits.next_mode) == ("serial", None)


def test_several_answers_are_submitted_together(bench: Bench) -> None:
    now = bench.loop.clock()
    params = SamplingParams(max_tokens=5)
    answers = [Request(name, "user", [1] * 40, params, Timeline(now, now)) for name in "abc"]
    bench.loop.submit(*answers)
    bench.wait_for_end(*"abc")
    assert all(len(bench.client.tokens[name]) == 5 for name in "abc")
    assert bench.client.ends["b"].cached_tokens == 32
    bench.runner.allow(0)
    bench.submit("d", output=30)
    bench.submit("e", output=30)
    bench.steps(2)
    with pytest.raises(QueueFullError):
        bench.loop.submit(*(Request(str(i), "user", [1], params, Timeline(now, now)) for i in range(5)))
    assert bench.loop.num_in_flight == 2


def test_a_frame_copies_the_scheduler_s_state_under_the_lock(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[bool] = []
    snapshot = read_model.take_snapshot

    def watched(*arguments: Any) -> Any:
        held.append(bench.loop._state.lock.locked())
        return snapshot(*arguments)

    monkeypatch.setattr(read_model, "take_snapshot", watched)
    bench.loop.frame(0, 0)
    assert held == [True]


def test_a_drain_refuses_all_choices_of_a_call_that_only_waits() -> None:
    bench = Bench(slots=1, queue=4, queue_share=100)
    bench.loop.start()
    bench.runner.allow(0)
    bench.submit("runs", output=5)
    bench.steps(0)
    now = bench.loop.clock()
    params = SamplingParams(max_tokens=5)
    bench.loop.submit(*(Request(name, "user", [1] * 40, params, Timeline(now, now)) for name in "ab"))
    bench.loop.drain()
    assert [bench.client.ends[name].unserved for name in "ab"] == [True, True]
    assert [bench.client.tokens[name] for name in "ab"] == [[], []]
    bench.release()
    bench.wait_for_end("runs")
    assert bench.client.ends["runs"].finish_reason == "length"
    bench.loop.stop()


def test_the_wait_of_a_newcomer_counts_everybody_who_waits() -> None:
    """A frame shows 32 of them; Retry-After must not stop there."""
    bench = Bench(slots=1, queue=200, context=64, queue_share=100)
    bench.loop.start()
    bench.submit("first", output=20)
    bench.wait_for_end("first")
    bench.runner.allow(0)
    bench.submit("running", output=20)
    bench.steps(1)
    waits = []
    for number in range(101):
        waits.append(bench.loop.estimated_wait())
        bench.submit(str(number), output=20)
    assert waits[0] is not None
    assert waits[40] is not None
    assert waits[100] is not None
    assert waits[0] < waits[40] < waits[100]
    assert waits[100] - waits[40] == pytest.approx((waits[40] - waits[0]) * 60 / 40)
    bench.release()
    bench.loop.stop()


class Watched(list[int]):
    """Tokens of a request that note how many of them are copied at a time."""

    copied = 0

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        if isinstance(index, slice):
            Watched.copied = max(Watched.copied, len(found))
        return found


def test_handing_over_a_token_does_not_copy_those_before_it(bench: Bench) -> None:
    now = bench.loop.clock()
    request = Request("a", "a", [1] * 8, SamplingParams(max_tokens=150), Timeline(now, now))
    request.token_ids = Watched(request.token_ids)
    Watched.copied = 0
    bench.loop.submit(request)
    bench.wait_for_end("a")
    assert len(bench.client.tokens["a"]) == 150
    assert Watched.copied <= 16, "a block's tokens are hashed together"
