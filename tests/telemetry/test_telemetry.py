"""Counters, rolling windows and the event log, from a scheduler whose seconds a test decides."""

from __future__ import annotations

from typing import Any

import pytest

from slotdeck.engine.core.request import FinishReason
from slotdeck.engine.telemetry import telemetry as telemetry_module
from slotdeck.engine.telemetry.telemetry import Telemetry
from tests.support.observed_run import DECODE, PER_PREFILL_TOKEN, Run

START = 100.0
"""What a Run's clock shows at first."""


def counted(telemetry: Telemetry) -> dict[str, Any]:
    """The counters that are not 0."""
    return {name: value for name, value in telemetry.counters().model_dump().items() if value}


def texts(telemetry: Telemetry) -> list[tuple[str, str]]:
    return [(event.kind, event.text) for event in telemetry.events_since(0)[0]]


def test_each_early_end_has_its_counters() -> None:
    for call, counters in (
        (lambda t: t.count_received(), {"received": 1}),
        (lambda t: t.count_invalid("a", "bad"), {"invalid": 1}),
        (lambda t: t.count_too_long("a", "too long"), {"invalid": 1, "too_long": 1}),
        (lambda t: t.count_rejected("a", "full"), {"rejected": 1}),
        (lambda t: t.count_rejected("a", "full", 3), {"rejected": 3}),
        (lambda t: t.count_cancelled_before_queue(), {"cancelled": 1}),
        (lambda t: t.count_failed_before_queue(), {"failed": 1}),
        (lambda t: t.count_pool_resize(), {"pool_resizes": 1}),
    ):
        telemetry = Telemetry(lambda: 0.0, lambda: 5.0)
        assert set(telemetry.counters().model_dump().values()) == {0}
        call(telemetry)
        assert counted(telemetry) == counters


def test_early_ends_are_logged_with_their_user() -> None:
    telemetry = Telemetry(lambda: 0.0, lambda: 5.0)
    telemetry.count_too_long("ann", "no room")
    telemetry.count_rejected("bob", "the queue is full")
    events, cursor = telemetry.events_since(0)
    assert [(event.kind, event.text, event.user, event.time) for event in events] == [
        ("too_long", "ann refused: no room", "ann", 5.0),
        ("rejected", "bob refused: the queue is full", "bob", 5.0),
    ]
    assert cursor == telemetry.event_cursor == 2


def test_a_life_is_counted_and_told() -> None:
    run = Run()
    run.submit("a", prompt=40, output=3)
    run.finish()
    assert counted(run.telemetry) == {
        "finished": 1, "prompt_tokens": 40, "generated_tokens": 3, "steps": 5,
    }  # fmt: skip
    prefill = 3 * DECODE + 40 * PER_PREFILL_TOKEN
    assert texts(run.telemetry) == [
        ("admitted", "user-a admitted to slot 0 after 0.00 s in the queue"),
        ("first_token", f"user-a first token after {prefill + 0.002:.2f} s"),
        ("finished", f"user-a finished (length): 3 tokens in {prefill + 2 * DECODE:.1f} s"),
    ]
    event = run.telemetry.events_since(0)[0][0]
    assert (event.request_id, event.user, event.slot) == ("a", "user-a", 0)
    assert event.time == 1_000_000.0 + START, "the wall clock"


def test_what_the_prefix_cache_gave_is_counted() -> None:
    run = Run(prefix_sharing=True)
    run.submit("a", prompt=40, output=2)
    run.finish()
    run.submit("b", prompt=40, output=2)
    run.finish()
    assert run.telemetry.counters().cached_tokens == 32
    assert texts(run.telemetry)[3][1].endswith("in the queue, 32 tokens from the prefix cache")


def test_preemptions_are_counted_and_told_with_their_cause() -> None:
    run = Run(blocks=5, context=80)
    run.submit("old", prompt=16, output=60)
    run.submit("new", prompt=16, output=40)
    run.finish()
    new, counters = run.detail("new"), run.telemetry.counters()
    assert counters.preemptions == new.preemptions
    assert counters.recomputed_tokens == new.recomputed_tokens
    assert counters.stalled_seconds == pytest.approx(new.stalled)
    assert counters.kv_swap_bytes == 0
    told = texts(run.telemetry)
    preempted = [text for kind, text in told if kind == "preempted"]
    assert preempted[0].startswith("user-new (slot 1) preempted, the KV pool is full: ")
    assert preempted[0].endswith(" tokens thrown away")
    resumed = next(text for kind, text in told if kind == "resumed")
    assert f"user-new (slot 1) resumed after {new.stalls[0].seconds:.2f} s: " in resumed
    assert resumed.endswith(" to compute again")


def test_bytes_that_preemption_swapped_are_counted_both_ways() -> None:
    run = Run(blocks=5, context=80, preemption="swap", swap_space=1 << 20)
    run.submit("old", prompt=16, output=60)
    run.submit("new", prompt=16, output=40)
    run.finish()
    counters = run.telemetry.counters()
    moved = [event.swapped_bytes for event in run.events if event.swapped_bytes]
    assert len(moved) >= 2
    assert counters.kv_swap_bytes == sum(moved)
    assert counters.recomputed_tokens == 0
    told = texts(run.telemetry)
    assert any(kind == "preempted" and text.endswith(" tokens copied to host memory") for kind, text in told)
    assert any(kind == "resumed" and text.endswith("s: its KV copied back") for kind, text in told)


def test_a_second_preemption_says_how_often() -> None:
    run = Run(blocks=10, context=160, slots=4)
    for name, output in (("a", 40), ("b", 100), ("c", 100), ("d", 140)):
        run.submit(name, prompt=16, output=output)
    run.finish()
    preempted = [event for event in run.telemetry.events_since(0)[0] if event.kind == "preempted"]
    often = max(preempted, key=lambda event: sum(other.user == event.user for other in preempted)).user
    mine = [event.text for event in preempted if event.user == often]
    assert len(mine) > 1
    assert "times now" not in mine[0]
    assert mine[1].endswith(", 2 times now")


def test_who_is_cancelled_in_the_queue_gave_up_waiting() -> None:
    run = Run(slots=1)
    run.submit("a", prompt=4, output=10)
    run.step()
    run.submit("b", prompt=4, output=10)
    run.step(4)
    run.observe(run.scheduler.cancel("b", run.now))
    assert counted(run.telemetry)["cancelled"] == counted(run.telemetry)["gave_up_waiting"] == 1
    run.observe(run.scheduler.cancel("a", run.now))
    assert counted(run.telemetry)["cancelled"] == 2
    assert counted(run.telemetry)["gave_up_waiting"] == 1
    assert texts(run.telemetry)[-2:] == [
        ("cancelled", "user-b gave up waiting after 0.2 s"),
        ("cancelled", "user-a cancelled after 5 tokens"),
    ]


def test_failed_and_refused_requests_are_counted_apart() -> None:
    run = Run(slots=1)
    run.submit("a", prompt=4, output=10)
    run.step()
    run.submit("b", prompt=4, output=10)
    run.observe(run.scheduler.refuse("b", "shutting down", run.now))
    run.observe(run.scheduler.fail("a", "NaN logits", run.now))
    counts = counted(run.telemetry)
    assert (counts["rejected"], counts["failed"]) == (1, 1)
    assert "cancelled" not in counts
    assert texts(run.telemetry)[-2:] == [
        ("rejected", "user-b refused: shutting down"),
        ("failed", "user-a failed: NaN logits"),
    ]


def test_only_ends_are_passed_on_with_the_wall_clock() -> None:
    run = Run(slots=1)
    ended: list[tuple[str, str, float]] = []
    run.telemetry.on_ended = lambda event, wall: ended.append((event.kind, event.request.id, wall))
    for name in ("a", "b", "c", "d"):
        run.submit(name, prompt=4, output=3)
    run.step()
    run.observe(run.scheduler.cancel("b", run.now))
    run.observe(run.scheduler.refuse("c", "no", run.now))
    run.observe(run.scheduler.fail("d", "bad", run.now))
    run.finish()
    assert [(kind, name) for kind, name, _ in ended] == [
        ("cancelled", "b"), ("rejected", "c"), ("failed", "d"), ("finished", "a"),
    ]  # fmt: skip
    assert ended[-1][2] == 1_000_000.0 + run.now


def test_a_reader_gets_each_event_once_and_at_most_those_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry_module, "EVENTS_KEPT", 4)
    telemetry = Telemetry(lambda: 0.0, lambda: 5.0)
    assert telemetry.events_since(0) == ((), 0)
    telemetry.log("note", "1")
    telemetry.log("note", "2")
    events, cursor = telemetry.events_since(0)
    assert [event.text for event in events] == ["1", "2"]
    assert telemetry.events_since(cursor) == ((), 2)
    for number in range(3, 9):
        telemetry.log("note", str(number))
    events, cursor = telemetry.events_since(cursor)
    assert [event.text for event in events] == ["5", "6", "7", "8"]
    assert cursor == 8
    assert [event.text for event in telemetry.events_since(7)[0]] == ["8"]
    assert telemetry.events_since(99) == ((), 8)


def test_notes_are_kept_by_topic() -> None:
    telemetry = Telemetry(lambda: 0.0, lambda: 5.0)
    telemetry.set_note("history", "full disk")
    telemetry.set_note("other", "x")
    telemetry.set_note("history", "read-only")
    assert telemetry.notes() == ("x", "read-only")
    telemetry.set_note("history", None)
    telemetry.set_note("history", None)
    assert telemetry.notes() == ("x",)


def test_windows_hold_what_their_seconds_hold() -> None:
    run = Run(slots=1)
    run.submit("a", prompt=4, output=2)
    run.submit("b", prompt=10, output=2)
    run.finish()
    minute, ten_minutes = run.telemetry.windows()
    assert (minute.seconds, ten_minutes.seconds) == (60, 600)
    first_ttft = DECODE + 4 * PER_PREFILL_TOKEN + 0.002
    wait = 2 * DECODE + 4 * PER_PREFILL_TOKEN
    second_ttft = 0.002 + wait + DECODE + 10 * PER_PREFILL_TOKEN
    assert (minute.ttft_count, minute.itl_count, minute.wait_count) == (2, 2, 2)
    assert minute.ttft_p50 == pytest.approx((first_ttft + second_ttft) / 2)
    assert minute.ttft_p95 == pytest.approx(first_ttft + 0.95 * (second_ttft - first_ttft))
    assert (minute.itl_p50, minute.itl_max) == (pytest.approx(DECODE), pytest.approx(DECODE))
    assert minute.wait_p95 == pytest.approx(0.95 * wait)
    elapsed = 0.5  # less has passed, and rates over less would jump
    assert minute.generated_per_second == pytest.approx(4 / elapsed)
    assert minute.prompt_per_second == pytest.approx(14 / elapsed)
    assert run.telemetry.windows() == (minute, ten_minutes)

    run.now += 10.0
    spread = run.telemetry.windows()[0]
    assert spread.generated_per_second == pytest.approx(4 / (run.now - START))
    run.now += 49.9 - (run.now - START)
    assert run.telemetry.windows()[0].ttft_count == 2
    run.now = START + 70.0
    minute, ten_minutes = run.telemetry.windows()
    assert (minute.ttft_count, minute.itl_count, minute.wait_count, minute.generated_per_second) == (0, 0, 0, 0.0)
    assert (minute.ttft_p50, minute.itl_p95, minute.itl_max, minute.wait_p95) == (None, None, None, None)
    assert (ten_minutes.ttft_count, ten_minutes.itl_count) == (2, 2)
    assert ten_minutes.generated_per_second == pytest.approx(4 / 70)
    run.now = START + 1000.0
    assert run.telemetry.windows()[1].ttft_count == 0


def test_windows_are_computed_at_most_once_a_second() -> None:
    run = Run()
    run.submit("a", prompt=4, output=9)
    run.step(2)
    kept = run.telemetry.windows()
    run.step(2)
    computed = START + DECODE * 2 + 4 * PER_PREFILL_TOKEN
    run.now = computed + 0.99
    assert run.telemetry.windows() is kept
    run.now = computed + 1.0
    assert run.telemetry.windows()[0].itl_count == 3


def test_itl_is_the_gap_between_two_tokens_of_one_request() -> None:
    run = Run()
    run.submit("a", prompt=4, output=6)
    run.step()
    run.submit("b", prompt=40, output=2)
    run.finish()
    minute = run.telemetry.windows()[0]
    assert minute.itl_count == 5 + 1
    assert minute.itl_max == pytest.approx(DECODE + 16 * PER_PREFILL_TOKEN), "b's prompt slowed a down"


def test_rates_are_those_of_the_last_five_seconds() -> None:
    run = Run()
    assert run.telemetry.rates() == (0.0, 0.0)
    run.submit("a", prompt=14, output=4)
    run.finish()
    assert run.telemetry.rates() == (pytest.approx(4 / 0.5), pytest.approx(14 / 0.5))
    run.now = START + 4.0
    assert run.telemetry.rates() == (pytest.approx(1.0), pytest.approx(14 / 4))
    run.now = START + 20.0
    assert run.telemetry.rates() == (0.0, 0.0)
    assert run.telemetry.uptime == 20.0


def test_the_pace_is_that_of_the_last_requests() -> None:
    run = Run(slots=1)
    pace = run.telemetry.pace()
    assert (pace.output, pace.prompt, pace.gap, pace.prompt_per_second) == (None, None, None, None)
    for number in range(25):
        run.submit(f"r{number}", prompt=10, output=2 if number < 5 else 7)
        run.finish()
    run.now += 1.0
    pace = run.telemetry.pace()
    assert (pace.output, pace.prompt) == (7.0, 10.0), "the last 20 alone"
    assert pace.gap == pytest.approx(DECODE)
    assert pace.prompt_per_second == pytest.approx(10 / (DECODE + 10 * PER_PREFILL_TOKEN))
    run.now += 300
    assert run.telemetry.pace().gap == pytest.approx(DECODE), "of the ten minutes, when the last one had no tokens"


def test_the_last_times_to_first_token_are_kept_in_order() -> None:
    run = Run(slots=1)
    for number in range(22):
        run.submit(f"r{number}", prompt=4 + (number == 21), output=1)
        run.finish()
    recent = list(run.telemetry.recent_ttft)
    assert len(recent) == 20
    assert recent[-1] == pytest.approx(recent[0] + PER_PREFILL_TOKEN)


def test_the_histograms_get_the_same_numbers() -> None:
    run = Run(slots=1)
    run.submit("a", prompt=4, output=3)
    run.submit("b", prompt=8, output=1)
    run.finish()
    page = run.telemetry.metrics._registry
    total: dict[str, float] = {}
    for family in page.collect():
        for sample in family.samples:
            if sample.name.endswith(("_sum", "_count", "_total")) and sample.name.startswith("vllm"):
                total[sample.name] = total.get(sample.name, 0.0) + sample.value
    first, second = run.detail("a"), run.detail("b")
    assert total["vllm:time_to_first_token_seconds_sum"] == pytest.approx((first.ttft or 0) + (second.ttft or 0))
    assert total["vllm:request_prefill_time_seconds_sum"] == pytest.approx((first.prefill or 0) + (second.prefill or 0))
    assert total["vllm:request_queue_time_seconds_sum"] == pytest.approx(second.queue_wait)
    assert total["vllm:inter_token_latency_seconds_sum"] == pytest.approx(2 * DECODE)
    assert total["vllm:inter_token_latency_seconds_count"] == 2
    assert total["vllm:prompt_tokens_total"] == 12
    assert total["vllm:request_success_total"] == 2
    assert page.get_sample_value("slotdeck_requests_finished_total", {"reason": "length"}) == 2
    assert page.get_sample_value("slotdeck_step_seconds_count") == run.telemetry.counters().steps == 4


def test_a_stop_is_told_as_one() -> None:
    run = Run()
    run.submit("a", prompt=4, output=10)
    run.step(3)
    run.observe(run.scheduler.finish("a", 1, run.now))
    assert texts(run.telemetry)[-1] == ("finished", "user-a finished (stop): 1 token in 0.2 s")
    assert FinishReason.STOP.value == "stop"
