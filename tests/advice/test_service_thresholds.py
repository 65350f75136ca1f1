"""Rules about the service: each speaks at its threshold and is silent just before it."""

from __future__ import annotations

import pytest

from slotdeck.console.advice.rules_service import cold_start, context, died, fault, refused, seconds_per_place
from slotdeck.console.advice.window import Window
from slotdeck.engine.telemetry.frame import (
    EngineInfo,
    FrameEvent,
    HostInfo,
    PoolInfo,
    SlotInfo,
)
from tests.support.doctor_frames import GIB, START, frame, full, host, limits, run, slot


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
