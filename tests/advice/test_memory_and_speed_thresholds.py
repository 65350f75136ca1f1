"""Rules about memory and speed: each speaks at its threshold and is silent just before it."""

from __future__ import annotations

import pytest

from slotdeck.console.advice.doctor import diagnose
from slotdeck.console.advice.rules_memory import os_swap, preemption
from slotdeck.console.advice.rules_speed import budget, decode, prefill
from slotdeck.console.advice.window import Window
from slotdeck.engine.telemetry.frame import (
    PoolInfo,
    SlotInfo,
)
from tests.support.doctor_frames import full, host, limits, run, slot


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
