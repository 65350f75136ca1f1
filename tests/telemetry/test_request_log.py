"""One request's life from the steps: chunks, gaps with causes, preemptions, the sentence; bounded, without text."""

from __future__ import annotations

import pytest

from slotdeck.engine.telemetry.frame import HostInfo
from slotdeck.engine.telemetry.requests import log as request_log
from slotdeck.engine.telemetry.requests.detail import GapInfo, PrefillChunk, RequestDetail, StallInfo
from slotdeck.engine.telemetry.requests.sentence import describe
from tests.support.observed_run import DECODE, PER_PREFILL_TOKEN, Run


def test_chunks_add_up_to_the_prompt_and_gaps_to_the_time_of_writing() -> None:
    run = Run()
    run.submit("a", prompt=40, output=10)
    run.finish()
    detail = run.detail("a")
    assert [chunk.tokens for chunk in detail.chunks] == [16, 16, 8]
    assert not any(chunk.again for chunk in detail.chunks)
    assert detail.chunks[0].at == pytest.approx(0.002)
    assert sum(chunk.seconds for chunk in detail.chunks) == pytest.approx(detail.prefill)
    assert len(detail.gaps) == 9 == len(detail.gap_causes)
    assert detail.age is not None
    assert detail.ttft is not None
    assert detail.ttft + sum(detail.gaps) == pytest.approx(detail.age)
    assert (detail.state, detail.output_tokens, detail.finish_reason) == ("finished", 10, "length")
    assert describe(detail).startswith("Nothing held it up: first token after")


def test_sch_01_a_gap_that_another_prompt_made_names_its_user() -> None:
    run = Run()
    run.submit("a", prompt=4, output=30)
    run.step(10)
    run.submit("b", prompt=16, output=2)
    run.finish()
    detail = run.detail("a")
    longest = detail.long_gaps[0]
    assert (longest.cause, longest.seconds) == ("prefill", pytest.approx(DECODE + 16 * PER_PREFILL_TOKEN))
    assert "the prompt of user-b: 16 tokens read first" in longest.text
    assert detail.gap_causes.count("p") == 1
    assert "longest gap of 210 ms came from the prompt of user-b" in describe(detail)


def test_kv_03_a_preemption_shows_as_stall_and_gap_and_in_the_sentence() -> None:
    run = Run(blocks=5, context=80)
    run.submit("old", prompt=16, output=60)
    run.submit("new", prompt=16, output=40)
    run.finish()
    detail = run.detail("new")
    assert detail.preemptions
    assert len(detail.stalls) == detail.preemptions
    assert all(stall.seconds is not None for stall in detail.stalls)
    assert sum(stall.seconds or 0 for stall in detail.stalls) == pytest.approx(detail.stalled)
    assert sum(stall.tokens or 0 for stall in detail.stalls) >= (detail.recomputed_tokens or 0) > 0
    assert any(chunk.again for chunk in detail.chunks)
    assert detail.long_gaps[0].cause == "preempted"
    assert "because the KV pool was full: preempted" in describe(detail)
    assert run.detail("old").preemptions == 0


def test_a_request_still_preempted_has_an_open_stall() -> None:
    run = Run(blocks=5, context=80)
    run.submit("old", prompt=16, output=60)
    run.submit("new", prompt=16, output=40)
    while not run.scheduler.preempted:
        run.step()
    run.step(3)
    detail = run.detail("new")
    assert detail.stalls[-1].seconds is None
    assert detail.stalled == pytest.approx(run.now - 100.0 + 0.002 - detail.stalls[-1].at)


def test_who_waits_is_told_who_was_there_who_went_first_and_who_made_room() -> None:
    run = Run(slots=1)
    run.submit("a", prompt=4, output=10)
    run.step()
    run.submit("b", prompt=4, output=10)
    run.submit("c", prompt=4, output=10)
    run.finish()
    detail = run.detail("c")
    assert (detail.busy, detail.ahead, detail.freed_by) == (1, 1, "user-b")
    sentence = describe(detail)
    assert "in the queue: one other held a slot and one other went first until a request of user-b ended" in sentence


def test_who_gives_up_waiting_is_known_too() -> None:
    run = Run(slots=1)
    run.submit("a", prompt=4, output=10)
    run.step()
    run.submit("b", prompt=4, output=10)
    run.step(4)
    run.telemetry.observe(run.scheduler.cancel("b", run.now))
    detail = run.detail("b")
    assert (detail.state, detail.slot) == ("cancelled", None)
    assert detail.queue_wait == pytest.approx(4 * DECODE)
    assert describe(detail) == "Never started, cancelled after 200 ms in the queue: one other held a slot."


def test_slow_steps_and_os_swap_are_told_apart() -> None:
    run = Run()
    run.submit("a", prompt=4, output=30)
    run.step(10)
    run.step(extra=1.0)
    run.telemetry.requests.on_host(HostInfo(os_swap_in=4e6))
    run.step(extra=2.0)
    run.telemetry.requests.on_host(HostInfo(os_swap_in=0.0))
    run.finish()
    assert [gap.cause for gap in run.detail("a").long_gaps] == ["os_swap", "slow_step"]


def test_settings_that_changed_meanwhile_are_listed() -> None:
    run = Run()
    run.telemetry.log("setting_changed", "slots 1 → 2 by console")
    run.now += 1
    run.submit("a", prompt=4, output=10)
    run.step(2)
    run.telemetry.log("setting_changed", "budget 64 → 16 by console")
    run.finish()
    assert [change.text for change in run.detail("a").changes] == ["budget 64 → 16 by console"]


def test_settings_are_kept_as_they_were_at_the_admission() -> None:
    run = Run(slots=1)
    run.telemetry.requests.on_settings(run.scheduler.settings, 3)
    run.submit("a", prompt=4, output=10)
    run.submit("b", prompt=4, output=10)
    run.step(2)
    run.telemetry.requests.on_settings(run.scheduler.settings.model_copy(update={"budget": 32}), 4)
    run.finish()
    first, second = run.detail("a").settings, run.detail("b").settings
    assert first is not None
    assert second is not None
    assert (first.revision, first.budget) == (3, 16)
    assert (second.revision, second.budget) == (4, 32)


def test_memory_is_bounded_and_no_token_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_log, "MAX_ENDED_TOKENS", 25)
    run = Run()
    for number in range(5):
        run.submit(f"r{number}", prompt=4, output=10)
        run.finish()
    log = run.telemetry.requests
    assert [log.detail(f"r{number}") is None for number in range(5)] == [True, True, True, False, False]
    assert all(record.request is None for record in log._ended.values())
    assert log._live == {}


def test_very_many_chunks_are_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_log, "MAX_CHUNKS", 4)
    run = Run(budget=1)
    run.submit("a", prompt=20, output=2)
    run.finish()
    chunks = run.detail("a").chunks
    assert len(chunks) == 4
    assert sum(chunk.tokens for chunk in chunks) == sum(chunk.steps for chunk in chunks) == 20
    assert [chunk.tokens for chunk in chunks[:3]] == [1, 1, 1]


@pytest.mark.parametrize(
    ("detail", "text"),
    [
        (RequestDetail(request_id="a", state="waiting", queue_wait=3.1, position=2, estimate=4.0),
         "Waiting for 3.1 s, number 2 in the queue, likely to start in about 4.0 s."),
        (RequestDetail(request_id="a", state="prefill"),
         "Nothing held it up: it has a slot and its prompt is being read."),
        (RequestDetail(request_id="a", state="decode", prefill=3.5, ttft=3.5, chunks=(
            PrefillChunk(at=0, seconds=3.5, steps=30, tokens=1930, others=64, streams=3, again=False),)),
         "Its 1930 prompt tokens took 3.5 s in 30 steps, shared with 3 others writing and 64 prompt tokens of others."),
        (RequestDetail(request_id="a", state="preempted", preemptions=2, recomputed_tokens=3640, stalled=4.2,
                       stalls=(StallInfo(at=1, seconds=None, tokens=1),)),
         "Paused now, 4.2 s so far, because the KV pool is full: preempted 2 times, 3640 tokens computed twice."),
        (RequestDetail(request_id="a", state="decode", gap_p50=0.07, ttft=0.4, gaps=(0.07, 0.7), long_gaps=(
            GapInfo(at=3, seconds=0.7, cause="slow_step", text="one slow step with 4 writing"),)),
         "Its longest gap of 700 ms came from one slow step with 4 writing, 70 ms is usual."),
        (RequestDetail(request_id="a", state="failed", failure="NaN logits"), "Failed: NaN logits."),
    ],
)  # fmt: skip
def test_the_sentence(detail: RequestDetail, text: str) -> None:
    assert describe(detail) == text


def test_steps_of_many_chunks_are_added_up_in_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_log, "MAX_CHUNKS", 2)
    run = Run(slots=3, budget=16)
    run.submit("w", prompt=4, output=40)
    run.step()
    run.submit("a", prompt=90, output=2)
    run.submit("b", prompt=60, output=2)
    run.finish()
    first, rest = run.detail("a").chunks
    assert first.steps == 1
    assert first.seconds == pytest.approx(DECODE + 16 * PER_PREFILL_TOKEN)
    assert first.tokens + rest.tokens == 90
    assert first.tokens + first.others == 16
    assert rest.steps > 1
    assert rest.streams == 1 == first.streams, "only w writes meanwhile"
    others = sum(chunk.tokens for chunk in run.detail("b").chunks)
    assert others == 60
    assert 0 < rest.others <= 60
    assert rest.seconds == pytest.approx(rest.steps * DECODE + (rest.tokens + rest.others) * PER_PREFILL_TOKEN)


def test_facts_of_a_request_that_still_runs() -> None:
    run = Run(slots=1)
    run.submit("a", prompt=40, output=10)
    run.now += 0.5
    run.step()
    detail = run.detail("a")
    assert (detail.state, detail.slot, detail.user) == ("prefill", 0, "user-a")
    assert (detail.prompt_tokens, detail.output_tokens, detail.max_tokens, detail.cached_tokens) == (40, 0, 10, 0)
    assert (detail.intake, detail.queue_wait) == (pytest.approx(0.002), pytest.approx(0.5))
    assert (detail.prefill, detail.ttft, detail.finish_reason, detail.failure) == (None, None, None, None)
    assert detail.age == pytest.approx(run.now - 100.0 + 0.002)
    assert detail.arrived == pytest.approx(1_000_100.0 - 0.002), "the wall clock of its arrival"
    assert (detail.busy, detail.ahead, detail.freed_by) == (0, 0, None)
    run.step(4)
    detail = run.detail("a")
    assert (detail.state, detail.output_tokens) == ("decode", 3)
    assert detail.prefill == pytest.approx(3 * DECODE + 40 * PER_PREFILL_TOKEN)
    assert detail.ttft == pytest.approx((detail.intake or 0) + (detail.queue_wait or 0) + (detail.prefill or 0))
    run.now += 100
    assert run.detail("a").age == pytest.approx(run.now - 100.0 + 0.002)


def test_facts_of_a_request_that_failed() -> None:
    run = Run()
    run.submit("a", prompt=4, output=10)
    run.step(3)
    ended = run.now
    run.observe(run.scheduler.fail("a", "NaN logits", run.now))
    run.now += 50
    detail = run.detail("a")
    assert (detail.state, detail.failure, detail.output_tokens) == ("failed", "NaN logits", 3)
    assert detail.age == pytest.approx(ended - 100.0 + 0.002), "it does not age after its end"


def test_who_gave_up_was_not_among_those_who_held_a_slot() -> None:
    run = Run(slots=1)
    run.submit("a", prompt=4, output=10)
    run.step()
    run.submit("b", prompt=4, output=10)
    run.step()
    run.observe(run.scheduler.cancel("b", run.now))
    run.submit("c", prompt=4, output=10)
    run.finish()
    detail = run.detail("c")
    assert (detail.busy, detail.ahead, detail.freed_by) == (1, 0, "user-a")


def test_changes_are_those_between_arrival_and_end() -> None:
    run = Run()
    run.submit("a", prompt=4, output=3)
    run.step()
    run.telemetry.log("setting_changed", "slots 1 → 2 by console")
    changed = run.now
    run.finish()
    run.now += 1
    run.telemetry.log("setting_changed", "too late")
    (change,) = run.detail("a").changes
    assert change.at == pytest.approx(changed - 100.0 + 0.002)
    run.telemetry.log("note", "not a setting")
    assert len(run.detail("a").changes) == 1


def test_the_number_of_ended_requests_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_log, "MAX_ENDED", 3)
    run = Run()
    for number in range(5):
        run.submit(f"r{number}", prompt=4, output=1)
        run.finish()
    assert list(run.telemetry.requests._ended) == ["r2", "r3", "r4"]
    assert run.telemetry.requests._ended_tokens == 3
    monkeypatch.setattr(request_log, "MAX_ENDED_TOKENS", 4)
    run.submit("r5", prompt=4, output=2)
    run.finish()
    assert list(run.telemetry.requests._ended) == ["r3", "r4", "r5"], "four tokens are still within the bound"
    assert run.telemetry.requests.detail("nobody") is None


def test_a_preempted_request_counts_its_stall_up_to_now_and_then_no_more() -> None:
    run = Run(blocks=5, context=80)
    run.submit("old", prompt=16, output=60)
    run.submit("new", prompt=16, output=40)
    while not run.scheduler.preempted:
        run.step()
    run.now += 7.0
    stalled = run.detail("new").stalled or 0.0
    assert stalled > 7.0
    run.finish()
    detail = run.detail("new")
    run.now += 100.0
    assert run.detail("new").stalled == detail.stalled
    assert detail.stalls[0].cause == "pool_full"
    assert detail.stalls[0].swapped is False
    assert detail.stalls[0].at == pytest.approx(sum(chunk.seconds for chunk in detail.chunks[:1]) + 0.002, abs=2.0)


@pytest.mark.parametrize(
    ("detail", "text"),
    [
        (RequestDetail(request_id="a", state="waiting", queue_wait=3.1), "Waiting for 3.1 s, in the queue."),
        (RequestDetail(request_id="a", state="rejected", queue_wait=0.0, busy=2, failure="shutting down"),
         "Never started, refused after 0 ms in the queue: 2 others held slots; shutting down."),
        (RequestDetail(request_id="a", state="decode", slot=1, queue_wait=0.0999, ttft=0.2),
         "Nothing held it up: first token after 200 ms."),
        (RequestDetail(request_id="a", state="decode", slot=1, queue_wait=0.1, ttft=0.2),
         "Waited 100 ms in the queue."),
        (RequestDetail(request_id="a", state="decode", slot=1, queue_wait=100.4, ahead=2, freed_by="bob"),
         "Waited 100 s in the queue: 2 others went first until a request of bob ended."),
        (RequestDetail(request_id="a", state="cancelled", slot=0, queue_wait=0.0, ttft=0.25, gaps=(0.1, 0.2)),
         "Nothing held it up: first token after 250 ms, longest gap 200 ms."),
        (RequestDetail(request_id="a", state="decode", prefill=0.99, ttft=1.0, chunks=(
            PrefillChunk(at=0, seconds=1, steps=1, tokens=9, others=0, streams=1, again=False),)),
         "Nothing held it up: first token after 1.0 s."),
        (RequestDetail(request_id="a", state="decode", prefill=1.0, ttft=1.0, chunks=(
            PrefillChunk(at=0, seconds=1, steps=1, tokens=1, others=0, streams=1, again=False),
            PrefillChunk(at=5, seconds=1, steps=7, tokens=50, others=8, streams=9, again=True),)),
         "Its 1 prompt token took 1.0 s in 1 step, shared with one other writing."),
        (RequestDetail(request_id="a", state="decode", prefill=2.0, ttft=3.0, chunks=(
            PrefillChunk(at=0, seconds=1, steps=2, tokens=5, others=1, streams=0, again=False),),
            stalls=(StallInfo(at=1.0, seconds=0.5, tokens=1), StallInfo(at=3.0, seconds=9.0, tokens=1))),
         "Its 5 prompt tokens took 2.0 s in 2 steps, shared with 1 prompt token of others, "
         "preempted for 500 ms of it."),
        (RequestDetail(request_id="a", state="finished", preemptions=1, stalled=0.4, stalls=(
            StallInfo(at=1, seconds=0.4, tokens=1, swapped=True, cause="pool_shrunk"),)),
         "Paused 400 ms because the KV pool was made smaller: preempted once, its KV copied to host memory and back."),
        (RequestDetail(request_id="a", state="finished", preemptions=2, stalled=0.4, recomputed_tokens=1, stalls=(
            StallInfo(at=1, seconds=0.2, tokens=1), StallInfo(at=2, seconds=0.2, tokens=1, cause="step_failed"),)),
         "Paused 400 ms because the KV pool was full and a step failed: preempted 2 times, 1 token computed twice."),
        (RequestDetail(request_id="a", state="decode", gap_p50=0.2, ttft=0.4, gaps=(0.2, 0.59), long_gaps=(
            GapInfo(at=3, seconds=0.59, cause="slow_step", text="x"),)),
         "Nothing held it up: first token after 400 ms, longest gap 590 ms."),
        (RequestDetail(request_id="a", state="decode", gap_p50=0.2, ttft=0.4, gaps=(0.2, 0.6), long_gaps=(
            GapInfo(at=3, seconds=0.6001, cause="slow_step", text="x"),)),
         "Its longest gap of 600 ms came from x, 200 ms is usual."),
        (RequestDetail(request_id="a", state="decode", failure="not yet"),
         "Nothing held it up: it has a slot and its prompt is being read."),
    ],
)  # fmt: skip
def test_the_sentence_at_its_limits(detail: RequestDetail, text: str) -> None:
    assert describe(detail) == text
