"""A frame of a scheduler whose state is known: each number from its own source."""

from __future__ import annotations

from itertools import pairwise

import pytest

from slotdeck.engine.core.request import State
from slotdeck.engine.telemetry import frame_builder
from slotdeck.engine.telemetry.frame import EngineInfo, Frame, HostInfo, LimitInfo, SlotInfo
from slotdeck.engine.telemetry.frame_builder import build_frame, estimate_waits, queue_load, take_snapshot
from tests.support.observed_run import DECODE, PER_PREFILL_TOKEN, Run

ENGINE = EngineInfo(model="m", notes=("for good",))
LIMITS = LimitInfo(revision=4, slots=2)
HOST = HostInfo(memory_total=9)


def frame_of(run: Run, cursor: int = 0) -> Frame:
    seen = take_snapshot(run.scheduler, run.telemetry.pace(), (700, 30), run.now)
    frame, _ = build_frame(
        seen, run.telemetry, cursor, boot_id="boot", sequence=12, engine=ENGINE, limits=LIMITS, host=HOST,
        health="draining", health_reason="why",
    )  # fmt: skip
    return frame


def slot_of(run: Run, name: str) -> SlotInfo:
    return next(slot for slot in frame_of(run).slots if slot.request_id == name)


def test_the_pool_is_told_in_tokens() -> None:
    run = Run(blocks=20, prefix_sharing=True)
    run.submit("gone", prompt=40, output=1)
    run.finish()
    run.submit("a", prompt=20, output=9)
    run.step(2)
    pool = frame_of(run).pool
    assert (pool.total, pool.block_size) == (320, 16)
    assert (pool.live, pool.cached, pool.free) == (32, 16, 272)
    assert (pool.bytes_per_token, pool.scale_bytes_per_token) == (700, 30)
    assert pool.swapped == 0


def test_a_slot_shows_its_request() -> None:
    run = Run(slots=3, budget=16)
    run.submit("a", prompt=20, output=9)
    run.now += 0.25
    run.step()
    first = slot_of(run, "a")
    assert (first.slot, first.state, first.user) == (0, "prefill", "user-a")
    assert (first.prompt_tokens, first.computed_tokens, first.output_tokens, first.max_tokens) == (20, 16, 0, 9)
    assert (first.intake, first.queue_wait) == (pytest.approx(0.002), pytest.approx(0.25))
    assert (first.prefill, first.ttft, first.gaps, first.itl_p95) == (None, None, (), None)
    assert first.age == pytest.approx(run.now - 100 + 0.002)
    run.step(4)
    later = slot_of(run, "a")
    assert (later.state, later.computed_tokens, later.output_tokens) == ("decode", 23, 4)
    assert later.prefill == pytest.approx(2 * DECODE + 20 * PER_PREFILL_TOKEN)
    assert later.ttft == pytest.approx(0.252 + (later.prefill or 0))
    assert later.gaps == pytest.approx((DECODE,) * 3)
    assert later.itl_p95 == pytest.approx(DECODE)
    assert (later.preemptions, later.recomputed_tokens, later.swapped_bytes, later.cached_tokens) == (0, 0, 0, 0)
    assert (later.stalled, later.blocks) == (0.0, 2)
    assert [slot.state for slot in frame_of(run).slots] == ["decode", "idle", "idle"]


def test_at_most_so_many_gaps_are_shown_and_they_are_the_newest() -> None:
    run = Run()
    run.submit("a", prompt=4, output=60)
    run.step(20)
    run.step(extra=1.0)
    run.step(23)
    slot = slot_of(run, "a")
    assert len(slot.gaps) == frame_builder.GAPS_SHOWN == 24
    assert slot.gaps[0] == pytest.approx(1.0 + DECODE)
    assert slot.itl_p95 == pytest.approx(DECODE)


def test_the_running_the_preempted_and_the_waiting_are_counted_apart() -> None:
    run = Run(blocks=5, context=80)
    run.submit("old", prompt=16, output=60)
    run.submit("new", prompt=16, output=40)
    run.submit("later", prompt=7, output=4)
    while not run.scheduler.preempted:
        run.step()
    run.now += 2.0
    frame = frame_of(run)
    assert (frame.running, frame.waiting_count) == (1, 1)
    new = slot_of(run, "new")
    assert (new.state, new.computed_tokens, new.blocks, new.preemptions) == ("preempted", 0, 0, 1)
    (stall,) = run.detail("new").stalls
    assert new.stalled == pytest.approx(run.now - 100 + 0.002 - stall.at)
    (waiter,) = frame.waiting
    assert (waiter.request_id, waiter.user, waiter.prompt_tokens) == ("later", "user-later", 7)
    assert waiter.waited == pytest.approx(run.now - 100.0)
    assert waiter.estimate is None, "beside a preempted request nobody knows"
    while run.scheduler.preempted:
        run.step()
    resumed = slot_of(run, "new")
    assert resumed.stalled == pytest.approx(run.detail("new").stalls[0].seconds)
    assert resumed.recomputed_tokens


def test_what_was_swapped_out_is_told_apart() -> None:
    run = Run(blocks=5, context=80, preemption="swap", swap_space=1 << 20)
    run.submit("old", prompt=16, output=60)
    run.submit("new", prompt=16, output=40)
    while not run.scheduler.preempted:
        run.step()
    frame = frame_of(run)
    slot = slot_of(run, "new")
    assert slot.state == "swapped"
    assert frame.pool.swapped == slot.swapped_bytes == 200


def test_a_slot_that_a_batch_still_holds_is_held() -> None:
    run = Run(mode="static")
    run.submit("short", prompt=4, output=1)
    run.submit("long", prompt=4, output=30)
    run.step(3)
    assert slot_of(run, "short").state == "held"
    assert slot_of(run, "long").state == "decode"
    assert frame_of(run).running == 1


def test_slots_beyond_the_setting_are_shown_until_they_are_free() -> None:
    run = Run(slots=3)
    for name in ("a", "b", "c"):
        run.submit(name, prompt=2, output=20)
    run.step(2)
    run.scheduler.update(run.scheduler.settings.model_copy(update={"slots": 1}))
    assert [(slot.slot, slot.request_id) for slot in frame_of(run).slots] == [(0, "a"), (1, "b"), (2, "c")]
    run.observe(run.scheduler.cancel("b", run.now))
    assert [(slot.slot, slot.request_id) for slot in frame_of(run).slots] == [(0, "a"), (2, "c")]


def test_the_frame_says_who_when_and_how() -> None:
    run = Run()
    run.submit("a", prompt=4, output=3)
    run.finish()
    frame = frame_of(run, cursor=1)
    assert (frame.boot_id, frame.sequence, frame.health, frame.health_reason) == ("boot", 12, "draining", "why")
    assert (frame.engine, frame.limits, frame.host) == (ENGINE, LIMITS, HOST)
    assert frame.time == 1_000_000.0 + run.now
    assert frame.uptime == pytest.approx(run.now - 100.0)
    assert [event.kind for event in frame.events] == ["first_token", "finished"]
    assert frame.counters == run.telemetry.counters()
    assert (frame.minute, frame.ten_minutes) == run.telemetry.windows()
    assert (frame.generated_per_second, frame.prompt_per_second) == run.telemetry.rates()
    assert frame.recent_ttft == tuple(run.telemetry.recent_ttft) != ()
    run.telemetry.set_note("history", "not recorded")
    assert frame_of(run).engine.notes == ("for good", "not recorded")


def test_the_queue_is_shown_up_to_a_limit_and_estimated_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_builder, "WAITING_SHOWN", 2)
    run = Run(slots=1, queue=8)
    run.submit("first", prompt=10, output=5)
    run.finish()
    run.submit("a", prompt=10, output=50)
    run.step(3)
    for name in ("b", "c", "d"):
        run.submit(name, prompt=10, output=5)
    run.now += 1.0
    frame = frame_of(run)
    assert [waiter.request_id for waiter in frame.waiting] == ["b", "c"]
    assert frame.waiting_count == 3
    load = queue_load(run.scheduler)
    assert (load.waiting, load.slots, load.whole_batches, load.waits_for_slots) == (3, 1, False, True)
    (running,) = load.running
    assert (running.prefill_left, running.output, running.max_output) == (1, 3, 50)
    one = 5 * DECODE + 10 / (10 / (DECODE + 10 * PER_PREFILL_TOKEN))
    waits = estimate_waits(load, 4, run.telemetry.pace())
    assert [waiter.estimate for waiter in frame.waiting] == waits[:2]
    steps = [(later or 0.0) - (before or 0.0) for before, later in pairwise(waits)]
    assert steps == pytest.approx([one] * 3)


def test_with_a_slot_free_the_queue_does_not_wait_for_slots() -> None:
    run = Run(slots=4, blocks=4, context=64)
    run.submit("first", prompt=4, output=5)
    run.finish()
    for name in ("a", "b", "c"):
        run.submit(name, prompt=30, output=4)
    run.step()
    assert len(run.scheduler.waiting)
    load = queue_load(run.scheduler)
    assert not load.waits_for_slots
    assert estimate_waits(load, 2, run.telemetry.pace()) == [None, None]
    static = Run(mode="static", slots=2)
    static.submit("a", prompt=4, output=20)
    static.step()
    static.submit("b", prompt=4, output=4)
    load = queue_load(static.scheduler)
    assert load.whole_batches
    assert load.waits_for_slots, "a free slot lets nobody into a batch that runs"


def test_a_request_that_waits_for_its_first_step_prefills() -> None:
    run = Run(budget=4, slots=2)
    run.submit("a", prompt=12, output=4)
    run.submit("b", prompt=12, output=4)
    run.step()
    states = {slot.request_id: slot.state for slot in frame_of(run).slots}
    assert states == {"a": "prefill", "b": "prefill"}
    assert all(request.state is State.RUNNING for request in run.scheduler.running)
