"""The doctor's thresholds: each rule speaks at its bound and is silent just before it."""

from __future__ import annotations

from typing import Any

import pytest

from slotdeck.console.advice.doctor import diagnose
from slotdeck.console.advice.finding import Finding, bounded, cost_text, power_of_two
from slotdeck.console.advice.room import another_slot, larger_pool
from slotdeck.console.advice.rules_memory import os_swap, preemption
from slotdeck.console.advice.rules_service import cold_start, context, died, fault, refused, seconds_per_place
from slotdeck.console.advice.rules_speed import budget, decode, prefill
from slotdeck.console.advice.rules_waiting import deep_queue, queue
from slotdeck.console.advice.window import Window, seconds_since_change, settled_frames
from slotdeck.engine.settings import SETTINGS
from slotdeck.engine.telemetry.frame import (
    EngineInfo,
    Frame,
    FrameEvent,
    HostInfo,
    LimitInfo,
    PoolInfo,
    SlotInfo,
    WaitingInfo,
    WindowInfo,
)
from tests.support.doctor_frames import START, WELL, frame, full, run, slot, waiting

GIB = 1 << 30


def limits(**changes: Any) -> LimitInfo:
    values: dict[str, Any] = {"slots": 4, "context": 2048, "queue": 16, "budget": 64} | changes
    return LimitInfo(**values)


def host(**changes: Any) -> HostInfo:
    values: dict[str, Any] = {"memory_total": 16 * GIB, "memory_used": 8 * GIB, "os_swap_in": 0.0, "os_swap_out": 0.0,
                              "memory_pressure": 0.0}  # fmt: skip
    return HostInfo(**(values | changes))


# ---------------------------------------------------------------------- findings


@pytest.mark.parametrize(("value", "power"), [(0.3, 1), (1, 1), (1.9, 1), (2, 2), (3.9, 2), (64, 64), (127.9, 64)])
def test_power_of_two_is_the_largest_below(value: float, power: int) -> None:
    assert power_of_two(value) == power


def test_a_bounded_value_stays_in_the_range_of_its_setting() -> None:
    setting = SETTINGS["slots"]
    assert setting.minimum is not None
    assert setting.maximum is not None
    assert bounded("slots", -3) == setting.minimum
    assert bounded("slots", 7) == 7
    assert bounded("slots", 10**9) == setting.maximum


@pytest.mark.parametrize(
    ("cost", "text"),
    [(None, "costs users an answer"), (0.49, ""), (0.5, "costs users 0 s"), (119.4, "costs users 119 s"),
     (119.5, "costs users 2 min"), (600.0, "costs users 10 min")],
)  # fmt: skip
def test_a_cost_is_told_in_seconds_then_minutes(cost: float | None, text: str) -> None:
    assert cost_text(Finding("queue", "warn", "t", (), "r", "e", cost=cost)) == text


# ---------------------------------------------------------------------- windows


def test_a_long_window_reads_the_percentiles_over_ten_minutes() -> None:
    long = WindowInfo(seconds=600, **WELL)
    assert Window(run(120)).latency.seconds == 60
    assert Window(run(121)).latency == long


def test_after_a_change_they_are_read_only_when_nothing_of_before_is_in_them() -> None:
    before = run(2, limits=limits(slots=3))
    for seconds, wanted in ((589, 60), (590, 600)):
        after = [frame(2), frame(2 + seconds)]
        assert Window([*before, *after]).latency.seconds == wanted


def test_a_frame_counts_for_ten_seconds_at_most_and_never_backwards() -> None:
    frames = [frame(0, waiting_count=2), frame(4, waiting_count=1), frame(100, waiting_count=5), frame(99)]
    assert Window(frames).person_seconds(lambda one: one.waiting_count or 0) == 2 * 4 + 1 * 10


def test_a_change_is_settled_after_a_minute() -> None:
    old, new = run(100), limits(slots=8)
    for seconds, settled in ((59, False), (60, True)):
        frames = [*old, frame(100, limits=new), frame(100 + seconds, limits=new)]
        assert (settled_frames(frames)[0].limits.slots == 8) is settled
        assert seconds_since_change(frames) == (None if settled else seconds)
    assert seconds_since_change(old[:5]) is None


def test_of_short_parts_the_longest_is_judged_and_of_long_ones_the_newest() -> None:
    parts = [(20, 1), (30, 2), (10, 3), (5, 4)]
    frames: list[Frame] = []
    for seconds, slots in parts:
        start = len(frames)
        frames += [frame(start + i, limits=limits(slots=slots)) for i in range(seconds)]
    assert settled_frames(frames)[0].limits.slots == 2
    long = [frame(i, limits=limits(slots=1 + i // 70)) for i in range(215)]
    assert settled_frames(long)[0].limits.slots == 3
    edge = [frame(i, limits=limits(slots=1 if i < 90 else 2 if i < 151 else 3)) for i in range(160)]
    assert settled_frames(edge)[0].limits.slots == 2, "60 s are enough"


def test_counters_are_counted_from_the_first_frame_or_from_the_start_of_the_engine() -> None:
    old = [frame(i, boot_id="zero") for i in range(5)]
    new = [frame(10 + i, counters={"finished": 7 + i, "stalled_seconds": 1.5}) for i in range(3)]
    assert Window(new).increase("finished") == 2
    window = Window([*old, *new])
    assert (window.increase("finished"), window.increase_seconds("stalled_seconds")) == (9, 1.5)
    assert (window.boots, window.whole_seconds, window.seconds) == (2, 12.0, 2.0)
    assert [one.boot_id for one in window.final_frames] == ["zero"]
    assert [one.boot_id for one in Window([*old, *new], engine_gone=True).final_frames] == ["zero", "one"]


def test_a_pool_fits_if_it_leaves_a_fifth_of_the_free_memory() -> None:
    pool = PoolInfo(total=1000, block_size=16, bytes_per_token=90, scale_bytes_per_token=10)
    window = Window(run(2, pool=pool, host=host(memory_total=2_000_000, memory_used=1_000_000)))
    assert window.fits_memory(1000 + 8000) is True
    assert window.fits_memory(1000 + 8001) is False
    gpu = EngineInfo(device="cuda:0")
    on_gpu = host(gpu_memory_total=3_000_000, gpu_memory_used=1_000_000)
    window = Window(run(2, pool=pool, host=on_gpu, engine=gpu))
    assert window.fits_memory(1000 + 16_000) is True
    assert window.fits_memory(1000 + 16_001) is False
    assert Window(run(2, pool=pool, host=host(memory_used=None))).fits_memory(5) is None


def test_the_usual_size_of_a_request_is_enough_for_three_quarters() -> None:
    slots = tuple(slot(i, blocks=10 * (i + 1)) for i in range(4))
    assert Window(run(2, slots=slots)).request_size == 40 * 16
    assert Window(run(2, slots=slots[:3])).request_size == 30 * 16
    assert Window(run(2, slots=())).request_size is None


def test_the_fullest_moment_of_the_pool_counts() -> None:
    live = {0: 100, 1: 900, 2: 300}
    window = Window(run(3, pool=lambda i: PoolInfo(total=1000, live=live[i], block_size=16)))
    assert window.max_pool_usage == 0.9
    assert window.share(lambda one: (one.pool.live or 0) > 100) == pytest.approx(2 / 3)
    assert window.mean(lambda one: one.pool.live) == pytest.approx(1300 / 3)


# ---------------------------------------------------------------------- the service


def test_sudden_ends_are_counted_and_the_last_three_described() -> None:
    boots = [[frame(10 * number + i, boot_id=f"b{number}") for i in range(2)] for number in range(6)]
    finding = died(Window([one for boot in boots for one in boot]))
    assert finding is not None
    assert finding.evidence[0] == "this happened 5 times; the last 3:"
    assert len(finding.evidence) == 4
    assert finding.cost == 5 * 2 * 5.0, "two requests of 5 s in each of five ends"
    three = died(Window([one for boot in boots[:4] for one in boot]))
    assert three is not None
    assert len(three.evidence) == 3


def test_one_request_waiting_is_in_flight_and_lost() -> None:
    last = frame(0, running=0, waiting_count=1, slots=())
    finding = died(Window([last], engine_gone=True))
    assert finding is not None
    assert "1 request in flight" in finding.evidence[0]


@pytest.mark.parametrize(
    ("used", "total", "told"), [(GIB, 4 * GIB, ", memory 25% full"), (GIB, None, ""), (None, GIB, "")]
)
def test_the_memory_of_a_sudden_end_is_told_if_it_is_known(used: int | None, total: int | None, told: str) -> None:
    finding = died(Window([frame(0, host=HostInfo(memory_used=used, memory_total=total))], engine_gone=True))
    assert finding is not None
    assert finding.evidence[0].endswith(f"2 requests in flight{told}")


def test_failed_steps_are_counted_with_their_requests() -> None:
    events = (
        FrameEvent(time=START, kind="engine_fault", text="step failed"),
        FrameEvent(time=START, kind="failed", text="r0", request_id="r0"),
    )
    frames = run(4, counters=lambda i: {"failed": i}, events=lambda i: events if i == 1 else ())
    finding = fault(Window(frames))
    assert finding is not None
    assert finding.evidence == ("1 steps failed, and 3 requests with them",)
    assert finding.cost == 5.0
    assert fault(Window(run(4, counters=lambda i: {"failed": i}))) is None


def test_the_queue_moves_on_by_served_requests_only() -> None:
    counters = {"finished": 4, "cancelled": 7, "gave_up_waiting": 6}
    window = Window([frame(0), frame(10, counters=counters)])
    assert seconds_per_place(window) == 2.0
    idle = Window([frame(0, slots=(), running=0), frame(10, slots=(), running=0, counters=counters)])
    assert seconds_per_place(idle) is None
    assert seconds_per_place(Window(run(3))) is None


@pytest.mark.parametrize(
    ("depth", "changes", "title"),
    [(3, {"queue": 4}, "The queue is full"), (4, {}, "More requests arrive than can be served")],
)
def test_a_wait_of_less_than_ten_seconds_is_better_than_a_refusal(
    depth: int, changes: dict[str, int], title: str
) -> None:
    """A place every 2 s: behind three the next would wait for 8 s, behind four for 10 s. The pool has no room."""
    full_pool = PoolInfo(total=8192, live=8000, block_size=16, bytes_per_token=1 << 20)
    frames = run(
        21, slots=full(), limits=limits(queue=depth), waiting_count=depth, pool=full_pool,
        host=host(memory_used=15 * GIB), counters=lambda i: {"rejected": i, "received": 2 * i, "finished": i // 2},
    )  # fmt: skip
    finding = refused(Window(frames))
    assert finding is not None
    assert (finding.changes, finding.title) == (changes, title)
    assert finding.evidence[0] == "20 of 40 requests were refused with 503"
    assert finding.evidence[1] == f"the queue of {depth} was full 100% of the time; it moves forward every 2.0 s"
    assert finding.cost == 20 * 2.0 * depth


def test_refused_users_lose_no_more_than_the_whole_time_and_four_are_named() -> None:
    events = tuple(FrameEvent(time=START, kind="rejected", text="", user=name) for name in "edcba")
    frames = run(
        11, slots=full(), limits=limits(queue=1), waiting_count=1, events=lambda i: events if i == 5 else (),
        counters=lambda i: {"rejected": 90 * i, "received": 90 * i, "finished": i // 10},
    )  # fmt: skip
    finding = refused(Window(frames))
    assert finding is not None
    assert finding.evidence[0].endswith(", from a, b, c, d and others")
    assert finding.cost == 5 * 10.0
    assert ", and a request at its end waits about 20.0 s already" in finding.explanation


@pytest.mark.parametrize(
    ("now", "trained", "total", "changes"),
    [
        (2048, 8192, 8192, {"context": 4096}),
        (2048, 3000, 8192, {"context": 3000}),
        (2048, 8192, 2500, {"context": 2500}),
        (2048, 8192, 2048, {"kv_tokens": 4096, "context": 4096}),
        (2048, 3000, 2048, {"kv_tokens": 3008, "context": 3000}),
        (2048, 2048, 8192, {}),
    ],
)
def test_a_context_is_doubled_within_training_and_pool(
    now: int, trained: int, total: int, changes: dict[str, int]
) -> None:
    engine = EngineInfo(trained_context=trained)
    pool = PoolInfo(total=total, live=100, block_size=16)
    frames = run(3, limits=limits(context=now), engine=engine, pool=pool, counters=lambda i: {"too_long": i})
    finding = context(Window(frames))
    assert finding is not None
    assert finding.changes == changes
    assert finding.cost is None
    assert finding.evidence[0] == f"2 prompts were refused: longer than the context of {now}"


def test_a_single_restart_counts_if_loading_takes_a_second() -> None:
    for load, told in ((0.99, False), (1.0, True)):
        engine = EngineInfo(load_seconds=load)
        frames = [frame(i, boot_id="ab"[i // 5], running=0, engine=engine) for i in range(10)]
        finding = cold_start(Window(frames))
        assert (finding is not None) is told
        assert finding is None or finding.cost == load


def test_a_cold_start_takes_three_times_as_long_as_usual() -> None:
    def slots(second: int) -> tuple[SlotInfo, ...]:
        if second <= 10:
            return full(3, ttft=1.0)
        return (slot(0, request_id="late", ttft=3.5, age=0.0),) if second == 70 else ()

    frames = run(71, slots=slots, running=lambda i: len(slots(i)))
    assert cold_start(Window(frames)) is not None
    twice = [one.model_copy(update={"slots": tuple(s.model_copy(update={"ttft": 1.2}) for s in one.slots)})
             if one is not frames[-1] else one for one in frames]  # fmt: skip
    assert cold_start(Window(twice)) is None


@pytest.mark.parametrize(("ttft", "quiet", "cold"), [(2.0, 60, False), (2.1, 60, True), (2.1, 59, False)])
def test_a_first_request_after_a_quiet_minute_is_cold_if_it_is_slow(ttft: float, quiet: int, cold: bool) -> None:
    def slots(second: int) -> tuple[SlotInfo, ...]:
        if second <= 10:
            return full(3, ttft=0.5)
        return (slot(0, request_id="late", ttft=ttft, age=0.0),) if second == 10 + quiet else ()

    finding = cold_start(Window(run(11 + quiet, slots=slots, running=lambda i: len(slots(i)))))
    assert (finding is not None) is cold
    if finding is not None:
        assert finding.evidence == ("1 first requests after a quiet minute took up to 2.1 s, the others 500 ms",)
        assert finding.cost == pytest.approx(1.6)


# ---------------------------------------------------------------------- waiting


def queued(wait: float = 4.0, ttft: float = 5.0, count: int = 5, **changes: Any) -> Finding | None:
    late = {"wait_p95": wait, "ttft_p95": ttft, "wait_count": count}
    values: dict[str, Any] = {"late": late, "slots": full(), "waiting_count": 3} | changes
    return queue(Window(run(11, **values)))


def test_a_wait_is_a_problem_from_a_second_and_half_of_the_ttft() -> None:
    assert queued(wait=1.0, ttft=2.0) is not None
    assert queued(wait=0.99, ttft=1.0) is None
    assert queued(wait=2.5, ttft=5.0) is not None
    assert queued(wait=2.4, ttft=5.0) is None
    assert queued(count=4) is None


def test_a_wait_of_more_than_half_a_minute_is_critical() -> None:
    for wait, level in ((30.0, "warn"), (30.1, "critical")):
        finding = queued(wait=wait, ttft=40.0)
        assert finding is not None
        assert finding.level == level
        assert finding.cost == 30.0


def test_held_slots_and_serial_runs_are_told_with_their_numbers() -> None:
    slots = (slot(0), slot(1), slot(2, "held"), slot(3, "held"))
    finding = queued(slots=slots, limits=limits(mode="static"))
    assert finding is not None
    assert "stayed empty for 20.0 s" in finding.evidence[1]
    finding = queued(slots=full(1), limits=limits(slots=1, mode="static"))
    assert finding is not None
    assert finding.title == "Requests wait for a slot", "one slot makes no batch"
    finding = queued(slots=full(1), limits=limits(slots=1, mode="serial"))
    assert finding is not None
    assert finding.changes == {"mode": "continuous", "slots": 2}


def test_the_pool_is_the_cause_if_slots_are_free_in_most_frames_with_a_queue() -> None:
    def slots(free: int) -> Any:
        return lambda i: full(3) if i < free else full(4)

    pool = PoolInfo(total=8192, live=8000, block_size=16)
    finding = queued(slots=slots(5), pool=pool)
    assert finding is not None
    assert finding.title == "Requests wait for a slot"
    finding = queued(slots=slots(6), pool=pool)
    assert finding is not None
    assert finding.title == "Requests wait for room in the KV pool"
    running = (6 * 3 + 5 * 4) / 11
    assert finding.changes == {"kv_tokens": -(-8192 * (1 + 3 / running) // 16) * 16}


@pytest.mark.parametrize(
    ("depth", "left", "waited", "changes"),
    [
        (30, 1, 5.0, None),
        (31, 1, 5.0, {"queue": 15}),
        (31, 0, 29.9, None),
        (31, 0, 30.0, {"queue": 15}),
    ],
)
def test_a_queue_is_too_deep_if_its_end_waits_for_more_than_a_minute(
    depth: int, left: int, waited: float, changes: dict[str, int] | None
) -> None:
    frames = run(
        3, slots=full(), limits=limits(queue=depth), waiting=waiting(3, waited, 2.0), waiting_count=3,
        counters=lambda i: {"gave_up_waiting": left * (i > 0)},
    )  # fmt: skip
    finding = deep_queue(Window(frames))
    assert (None if finding is None else finding.changes) == changes


def test_only_waits_of_requests_that_were_never_served_are_wasted() -> None:
    def entry(name: str, waited: float) -> WaitingInfo:
        return WaitingInfo(request_id=name, waited=waited, estimate=10.0)

    admitted = FrameEvent(time=START, kind="admitted", text="", request_id="admitted")
    gone = (entry("gone", 7.0), entry("admitted", 9.0), entry("served", 11.0), entry("waits", 5.0))
    frames = [
        frame(0, waiting=gone, limits=limits(queue=40)),
        frame(1, waiting=(entry("waits", 31.0),), limits=limits(queue=40), events=(admitted,),
              slots=(slot(0, request_id="served"),)),
    ]  # fmt: skip
    finding = deep_queue(Window(frames))
    assert finding is not None
    assert finding.cost == 7.0


# ---------------------------------------------------------------------- room


@pytest.mark.parametrize(
    ("live", "more", "changes"),
    [
        (6963, 3, {"kv_tokens": 14_336, "slots": 7}),
        (5570, 3, {"slots": 5}),
        (5571, 3, {"kv_tokens": 14_336, "slots": 7}),
        (100, 3, {"slots": 7}),
        (100, 0, {"slots": 5}),
        (100, 90, {"slots": 8}),
    ],
)
def test_more_slots_fill_the_pool_to_85_percent(live: int, more: int, changes: dict[str, int]) -> None:
    pool = PoolInfo(total=8192, live=live, block_size=16)
    assert another_slot(Window(run(2, pool=pool)), more=more)[0] == changes


def test_slow_text_or_preemption_forbids_more_slots() -> None:
    pool = PoolInfo(total=8192, live=100, block_size=16)
    assert another_slot(Window(run(2, pool=pool, late={"itl_p50": 0.2})), more=3)[0] == {}
    assert another_slot(Window(run(2, pool=pool, late={"itl_p50": 0.19})), more=3)[0] == {"slots": 7}
    preempting = run(2, pool=pool, counters=lambda i: {"preemptions": i})
    assert another_slot(Window(preempting), more=3)[0] == {"kv_tokens": 14_336}


def test_a_larger_pool_is_whole_blocks_or_none() -> None:
    pool = PoolInfo(total=8192, live=100, block_size=16, bytes_per_token=1 << 20)
    window = Window(run(2, pool=pool, host=host(memory_used=15 * GIB)))
    assert larger_pool(window, 8193) == 8208
    assert larger_pool(window, 8208) == 8208
    assert larger_pool(window, 20_000) is None


# ---------------------------------------------------------------------- memory


@pytest.mark.parametrize(
    ("frames", "swap", "pressure", "pressed", "found"),
    [
        (20, 100_000.0, 0.0, 0, False),
        (20, 100_001.0, 0.0, 3, True),
        (20, 100_001.0, 0.0, 2, False),
        (100, 100_001.0, 0.0, 5, True),
        (100, 100_001.0, 0.0, 4, False),
        (20, 0.0, 10.1, 5, True),
        (20, 0.0, 10.1, 4, False),
        (20, 0.0, 10.0, 20, False),
        (2, 0.0, 50.0, 2, False),
        (3, 0.0, 50.0, 3, True),
    ],
)
def test_swap_counts_from_three_frames_and_pressure_from_a_fifth_of_them(
    frames: int, swap: float, pressure: float, pressed: int, found: bool
) -> None:
    bad, good = host(os_swap_in=swap / 2, os_swap_out=swap / 2, memory_pressure=pressure), host()
    finding = os_swap(Window(run(frames, host=lambda i: bad if i < pressed else good)))
    assert (finding is not None) is found
    if finding is not None:
        assert finding.changes == {"slots": 2}
        assert finding.cost == 2 * min(pressed, frames - 1)


@pytest.mark.parametrize(
    ("again", "stall", "level"), [(20, 10.0, "critical"), (19, 10.0, "warn"), (19, 10.1, "critical")]
)
def test_preemption_is_critical_from_a_fifth_of_all_prefill_or_a_long_stall(
    again: int, stall: float, level: str
) -> None:
    slots = (*full(2, blocks=100), slot(2, "preempted", preemptions=1, stalled=stall, blocks=0))
    counters = {"preemptions": 1, "recomputed_tokens": again, "prompt_tokens": 100, "stalled_seconds": 3.5}
    frames = run(3, slots=slots, counters=lambda i: counters if i else {}, late={"prompt_per_second": 10.0})
    finding = preemption(Window(frames))
    assert finding is not None
    assert finding.level == level
    assert finding.evidence[0] == f"1 preemptions; {again} tokens were computed a second time, {again}% of all prefill"
    assert finding.cost == 3.5 + again / 10
    assert "1 of 3 observed requests were preempted" in finding.evidence[1]


def test_a_pool_grows_by_a_quarter_or_to_what_the_slots_need() -> None:
    pool = PoolInfo(total=1293, live=1000, block_size=16)
    finding = preemption(Window(run(3, slots=full(4, blocks=None), pool=pool, counters=lambda i: {"preemptions": i})))
    assert finding is not None
    assert finding.changes == {"kv_tokens": 1632}, "1616.25 tokens are 102 blocks"
    assert finding.evidence[1] == "up to 77% of the KV pool was live"
    roomy = PoolInfo(total=1293, live=1000, block_size=16, bytes_per_token=1000)
    finding = preemption(Window(run(3, slots=full(4, blocks=26), pool=roomy, counters=lambda i: {"preemptions": i})))
    assert finding is not None
    assert finding.changes == {"kv_tokens": 1840}, "4 x 457.6 tokens, each rounded up"
    assert finding.remedy == "kv_tokens 1293 → 1840, or slots 4 → 2"


def test_preempted_time_is_counted_from_the_frames_if_that_is_longer() -> None:
    slots = (*full(2), slot(2, "preempted", preemptions=1), slot(3, "swapped", preemptions=1))
    finding = preemption(Window(run(6, slots=slots, counters=lambda i: {"preemptions": i})))
    assert finding is not None
    assert finding.cost == 10.0


# ---------------------------------------------------------------------- speed


@pytest.mark.parametrize(
    ("ttft", "wait", "count", "found"),
    [(2.0, 0.8, 5, True), (1.99, 0.0, 5, False), (2.0, 0.81, 5, False), (2.0, 0.8, 4, False)],
)
def test_prefill_is_slow_from_two_seconds_of_which_most_is_not_waiting(
    ttft: float, wait: float, count: int, found: bool
) -> None:
    late = {"ttft_p95": ttft, "wait_p95": wait, "ttft_count": count}
    assert (prefill(Window(run(3, late=late))) is not None) is found


def test_a_budget_grows_to_steps_that_nobody_minds() -> None:
    """19 s in 380 steps: 50 ms a step at 64 tokens, so 256 tokens take the 200 ms that a gap may last."""
    late = {"ttft_p95": 6.0, "wait_p95": 0.2, "itl_p95": 0.1}
    slots = (slot(0, "prefill", prompt_tokens=3000, prefill=5.0),)
    counters = lambda i: {"steps": 20 * i, "cached_tokens": 30 * i, "prompt_tokens": 70 * i}  # noqa: E731
    finding = prefill(Window(run(20, late=late, slots=slots, counters=counters)))
    assert finding is not None
    assert finding.changes == {"budget": 256}
    assert "30% of the prompt tokens came from the prefix cache" in finding.evidence
    assert "prefill ran at up to 100 tok/s with a budget of 64" in finding.evidence
    assert finding.cost == 19.0
    short = (slot(0, "prefill", prompt_tokens=64, prefill=5.0),)
    finding = prefill(Window(run(20, late=late, slots=short, counters=counters)))
    assert finding is not None
    assert finding.changes == {}, "a prompt that fits one step gains nothing"
    slow = prefill(Window(run(20, late=late | {"itl_p95": 0.2}, slots=slots, counters=counters)))
    assert slow is not None
    assert slow.changes == {}


def test_the_share_of_cached_tokens_is_told_if_any_were_read() -> None:
    late = {"ttft_p95": 6.0, "wait_p95": 0.2}
    finding = prefill(Window(run(3, late=late, counters=lambda i: {"cached_tokens": i, "prompt_tokens": i})))
    assert finding is not None
    assert "50% of the prompt tokens came from the prefix cache" in finding.evidence


def test_a_budget_grows_eightfold_at_most_and_twofold_if_nothing_is_known() -> None:
    late = {"ttft_p95": 6.0, "wait_p95": 0.2, "itl_p95": 0.1}
    slots = (slot(0, "prefill", prompt_tokens=9000, prefill=5.0),)
    finding = prefill(Window(run(20, late=late, slots=slots, counters=lambda i: {"steps": 1000 * i})))
    assert finding is not None
    assert finding.changes == {"budget": 512}
    unknown = prefill(Window(run(20, late=late, slots=(slot(0, prefill=0.1),))))
    assert unknown is not None
    assert unknown.changes == {"budget": 128}


@pytest.mark.parametrize(("itl", "count", "found"), [(0.2, 50, True), (0.199, 50, False), (0.2, 49, False)])
def test_text_is_slow_from_a_fifth_of_a_second(itl: float, count: int, found: bool) -> None:
    late = {"itl_p50": itl, "itl_count": count}
    assert (decode(Window(run(3, late=late, slots=full()))) is not None) is found


@pytest.mark.parametrize(("itl", "streams", "changes"), [(0.4, 4, {"slots": 2}), (0.8, 4, {"slots": 1}), (0.4, 1, {})])
def test_slots_shrink_to_what_can_be_read(itl: float, streams: int, changes: dict[str, int]) -> None:
    finding = decode(Window(run(11, late={"itl_p50": itl}, slots=full(streams))))
    assert finding is not None
    assert finding.changes == changes
    assert finding.cost == pytest.approx(streams * 10 * (1 - 0.2 / itl))
    assert f"{streams}.0 streams at a time on average, up to 40 tok/s together" in finding.evidence


@pytest.mark.parametrize(
    ("itl", "pause", "share", "found"),
    [
        (0.05, 0.301, 1.0, True),
        (0.05, 0.299, 1.0, False),
        (0.1, 0.40, 1.0, True),
        (0.1, 0.39, 1.0, False),
        (0.05, 0.301, 0.05, True),
        (0.05, 0.301, 0.04, False),
    ],
)
def test_a_stutter_is_four_usual_gaps_and_three_tenths_of_a_second(
    itl: float, pause: float, share: float, found: bool
) -> None:
    late = {"itl_p50": itl, "itl_p95": pause, "itl_max": pause}

    def slots(second: int) -> tuple[SlotInfo, ...]:
        reads = second < round(100 * share)
        writer = slot(0, output_tokens=100 * second)
        return (writer, slot(1, "prefill", prompt_tokens=1500) if reads else slot(1, "idle"))

    finding = budget(Window(run(100, slots=slots, late=late, limits=limits(budget=256))))
    assert (finding is not None) is found
    if finding is not None:
        assert finding.changes == {"budget": 128}
        assert f"a prompt was read beside streams {share:.0%} of the time, up to 256 tokens" in finding.evidence[1]


def test_a_budget_is_halved_at_least_and_pauses_are_seen_in_the_streams() -> None:
    def steady(second: int) -> tuple[SlotInfo, ...]:
        return (slot(0, output_tokens=100 * second), slot(1, "prefill", prompt_tokens=1500))

    finding = budget(Window(run(9, slots=steady, late={"itl_p95": 0.301}, limits=limits(budget=200))))
    assert finding is not None
    assert finding.changes == {"budget": 100}

    def one_token(second: int) -> tuple[SlotInfo, ...]:
        return (slot(0, output_tokens=min(second, 1)), slot(1, "prefill", prompt_tokens=1500))

    finding = budget(Window(run(2, slots=one_token, limits=limits(budget=200))))
    assert finding is not None
    assert "gaps of up to 1.0 s" in finding.evidence[0]


def test_the_smallest_budget_is_not_lowered_and_a_target_chooses_its_own() -> None:
    slots = (slot(0), slot(1, "prefill", prompt_tokens=1500))
    late = {"itl_p95": 0.9}
    assert budget(Window(run(9, slots=slots, late=late, limits=limits(budget=16)))) is None
    assert budget(Window(run(9, slots=slots, late=late, limits=limits(budget=64, itl_target=50)))) is None
    finding = budget(Window(run(9, slots=slots, late=late, limits=limits(budget=17))))
    assert finding is not None
    assert finding.changes == {"budget": 16}


def test_a_cause_silences_what_it_explains() -> None:
    late = {"itl_p50": 0.4, "itl_p95": 3.0, "itl_max": 9.0, "ttft_p95": 6.0}
    slots = (*full(2), slot(2, "prefill", prompt_tokens=3000), slot(3, "idle"))
    swapping = host(os_swap_in=1e6)
    rules = [finding.rule for finding in diagnose(run(20, late=late, slots=slots, host=swapping))]
    assert rules == ["os_swap"]
    rules = [finding.rule for finding in diagnose(run(20, late=late, slots=slots))]
    assert "prefill" not in rules
    assert "decode" in rules
