"""Rules about waiting, and the settings that they propose: at each threshold and just before it."""

from __future__ import annotations

from typing import Any

import pytest

from slotdeck.console.advice.finding import Finding
from slotdeck.console.advice.room import another_slot, larger_pool
from slotdeck.console.advice.rules_waiting import deep_queue, queue
from slotdeck.console.advice.window import Window
from slotdeck.engine.telemetry.frame import (
    FrameEvent,
    PoolInfo,
    WaitingInfo,
)
from tests.support.doctor_frames import GIB, START, frame, full, host, limits, run, slot, waiting


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
