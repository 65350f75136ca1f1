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
