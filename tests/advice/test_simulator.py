"""The simulator is the engine's own core on a virtual clock: its invariants hold, its numbers are those of frames."""

from __future__ import annotations

from dataclasses import asdict
from itertools import islice
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotdeck.console.advice.simulated_frames import FrameMaker
from slotdeck.console.advice.simulation_result import SimulationResult
from slotdeck.console.advice.simulator import Simulator
from slotdeck.console.advice.step_model import StepTimes
from slotdeck.console.advice.traffic import KINDS, Edge, Traffic, Turn, User, describe
from slotdeck.engine.settings import LiveSettings
from slotdeck.engine.telemetry.frame import EngineInfo, Frame
from tests.support.calibration import PRICES


def live(**changes: Any) -> LiveSettings:
    values = {"slots": 4, "context": 1024, "queue": 64, "budget": 64, "kv_tokens": 4096} | changes
    return LiveSettings(**values)


def people(traffic: Traffic) -> list[User]:
    return [User(name, traffic.script(number), traffic.seconds) for number, name in enumerate(traffic.names())]


def run(traffic: Traffic, *, check: bool = False, seed: int = 1, **changes: Any) -> SimulationResult:
    return Simulator(live(**changes), StepTimes(PRICES, seed), check=check).run(people(traffic))


@settings(max_examples=12)
@given(
    kind=st.sampled_from(KINDS),
    users=st.integers(1, 8),
    mode=st.sampled_from(["serial", "static", "continuous"]),
    slots=st.integers(1, 6),
    pool=st.sampled_from([1024, 1536, 4096]),
    queue=st.integers(0, 6),
    budget=st.sampled_from([16, 64, 512]),
    preemption=st.sampled_from(["recompute", "swap"]),
    seed=st.integers(0, 1000),
)
def test_any_traffic_under_any_settings_keeps_the_invariants(
    *, kind: Any, users: int, mode: str, slots: int, pool: int, queue: int, budget: int, preemption: str, seed: int
) -> None:
    """``check`` asserts the core's own invariants after each step; here: nobody is lost and times have their order.

    And the steps that are taken at once, where nothing is decided, change nothing.
    """
    traffic = Traffic(kind, users, 12.0, 1024, seed)
    changes: dict[str, Any] = {"mode": mode, "slots": slots, "kv_tokens": pool, "queue": queue, "budget": budget}
    changes["preemption"] = preemption
    slow = run(traffic, check=True, seed=seed, **changes)
    assert len(slow.ttfts) == len(slow.waits) == slow.finished
    assert len(slow.gaps) == slow.generated - slow.finished
    assert all(ttft > wait >= 0 for ttft, wait in zip(sorted(slow.ttfts), sorted(slow.waits), strict=True))
    assert slow.too_long == 0
    assert slow.max_admitted <= (1 if mode == "serial" else slots)
    assert slow.max_queued <= slow.max_waiting
    fast = run(traffic, check=False, seed=seed, **changes)
    assert _rounded(fast) == _rounded(slow)


def _rounded(outcome: SimulationResult) -> dict[str, Any]:
    """Sums of the same seconds in another order differ in the last digit."""
    values = asdict(outcome)
    for name in ("ttfts", "waits", "gaps"):
        values[name] = sorted(round(value, 6) for value in values[name])
    return values | {"seconds": round(outcome.seconds, 6)}


def test_the_same_seed_gives_the_same_run_and_another_seed_another() -> None:
    traffic = Traffic("chat", 5, 120.0, 1024)
    assert run(traffic) == run(traffic)
    assert run(traffic, seed=2).gaps != run(traffic).gaps


def test_frames_show_what_the_outcome_says() -> None:
    """The recording of a run holds the same counters, events and percentiles that a real engine would have told."""
    traffic = Traffic("agent", 5, 40.0, 1024)
    maker = FrameMaker(EngineInfo(model="m"), start=1_790_000_000.0, token_bytes=(100, 0))
    outcome = Simulator(live(slots=3, queue=1, kv_tokens=1024), StepTimes(PRICES), watcher=maker).run(people(traffic))
    frames = [Frame.model_validate_json(frame.model_dump_json()) for frame in maker.frames]
    last = frames[-1]
    assert last.engine.name == "SIMULATED"
    assert last.counters.finished == outcome.finished
    assert last.counters.rejected == outcome.rejected > 0
    assert last.counters.preemptions == outcome.preemptions > 0
    assert last.counters.generated_tokens == outcome.generated
    assert last.counters.received == outcome.finished + outcome.rejected
    assert last.ten_minutes.ttft_p95 == pytest.approx(outcome.ttft_p95)
    assert last.ten_minutes.itl_p95 == pytest.approx(outcome.itl_p95)
    times = [frame.time for frame in frames]
    assert times == sorted(times)
    assert len(frames) >= outcome.seconds
    kinds = {event.kind for frame in frames for event in frame.events}
    assert {"admitted", "first_token", "preempted", "resumed", "finished", "rejected"} <= kinds
    assert any(slot.state == "decode" for frame in frames for slot in frame.slots)


def test_a_conversation_that_grows_hits_the_prefix_cache() -> None:
    turns = [Turn(0.0, 100, 50, True), Turn(1.0, 30, 50, False), Turn(1.0, 30, 50, False)]
    outcome = Simulator(live(), StepTimes(PRICES)).run([User("a", turns, 60.0)])
    # 150 tokens were known before the second turn and 230 before the third; a hit is whole blocks of 16.
    assert outcome.cached_tokens == 144 + 224
    assert outcome.prompt_tokens == 100 + 180 + 260
    without = Simulator(live(prefix_cache=False), StepTimes(PRICES)).run([User("a", turns, 60.0)])
    assert without.cached_tokens == 0
    assert (without.ttft_p95 or 0) > (outcome.ttft_p95 or 0)


def test_a_lone_request_takes_what_the_prices_say() -> None:
    """One prompt of 128 tokens in two steps, then tokens one by one: arithmetic that can be done by hand."""
    prices = PRICES.model_copy(update={"spread": (1.0,), "prefill_spread": (1.0,)})
    edge = Edge(intake=0.01, intake_token=0.0, turnaround=0.0)
    outcome = Simulator(live(), StepTimes(prices), edge).run([User("a", [Turn(0.0, 128, 3, True)], 1.0)])
    first = 2 * (0.006 + 0.002) + 128 * 0.0008 + 0.0005 + 1e-7 * (64 * 65 // 2 + 64 * (2 * 64 + 65) // 2)
    assert outcome.ttfts == pytest.approx([0.01 + first])
    assert outcome.gaps == pytest.approx([0.006 + 0.002 + 2e-6 * 128, 0.006 + 0.002 + 2e-6 * 129])
    assert outcome.seconds == pytest.approx(outcome.ttfts[0] + sum(outcome.gaps))


def test_modes_differ_as_they_do_for_people() -> None:
    """Serial queues, static waits for its slowest, continuous serves more per second; all on the same traffic."""
    traffic = Traffic("agent", 5, 60.0, 1024)
    serial, static, continuous = (
        run(traffic, slots=5, kv_tokens=5120, mode=m) for m in ("serial", "static", "continuous")
    )
    assert (serial.ttft_p95 or 0) > (static.ttft_p95 or 0) > (continuous.ttft_p95 or 0)
    assert (continuous.tokens_per_second or 0) > (static.tokens_per_second or 0) > (serial.tokens_per_second or 0)
    assert (serial.itl_p95 or 0) < (continuous.itl_p95 or 0)


def test_a_short_queue_refuses_and_its_users_come_back() -> None:
    outcome = run(Traffic("documents", 8, 30.0, 1024), slots=1, queue=1, kv_tokens=1024)
    assert outcome.rejected > 0
    assert outcome.finished > 3


def test_a_message_is_given_up_after_five_refusals_and_stays_in_the_conversation() -> None:
    """One user holds the only slot for an hour; the other is refused, five times for each message."""
    slow = PRICES.model_copy(update={"step": 5.0})
    holder = User("holder", [Turn(0.0, 100, 800, True)], 60.0)
    asker = User("asker", [Turn(1.0, 100, 10, True), Turn(0.0, 100, 10, False)], 3600.0)
    maker = FrameMaker(EngineInfo(model="m"), start=1_790_000_000.0)
    result = Simulator(live(slots=1, queue=0), StepTimes(slow), watcher=maker).run([holder, asker])
    assert (result.rejected, result.gave_up, result.finished) == (10, 2, 1)
    assert maker.frames[-1].counters.rejected == 10


def test_who_is_always_refused_and_never_pauses_comes_to_an_end() -> None:
    turns = [Turn(0.0, 900, 200, True)] * 10_000
    edge = Edge(intake=0.0, intake_token=0.0, turnaround=0.0)
    outcome = Simulator(live(), StepTimes(PRICES), edge).run([User("a", turns, 0.1)])
    assert outcome.finished == 0
    assert 100 < outcome.too_long < 10_000


def test_swap_costs_the_time_of_its_copies() -> None:
    traffic = Traffic("agent", 5, 40.0, 1024)
    changes = live(slots=5, kv_tokens=1024, preemption="swap")

    def swapped(copy: float) -> SimulationResult:
        simulator = Simulator(changes, StepTimes(PRICES), block_bytes=1, block_copy_seconds=copy)
        return simulator.run(people(traffic))

    cheap, dear = swapped(0.0), swapped(0.05)
    assert cheap.preemptions > 0
    assert dear.seconds > cheap.seconds


@pytest.mark.parametrize("kind", KINDS)
def test_scripts_are_seeded_and_fit_the_context(kind: Any) -> None:
    traffic = Traffic(kind, 2, 60.0, 512, seed=3)
    turns = list(islice(traffic.script(0), 200))
    assert turns == list(islice(traffic.script(0), 200))
    assert turns != list(islice(traffic.script(1), 200))
    length = 0
    for turn in turns:
        length = (0 if turn.fresh else length) + turn.message + turn.answer
        assert turn.message > 0
        assert length <= 512
    assert str(traffic.users) in describe(traffic)
    if kind == "chat":
        assert all(20 <= turn.think <= 60 for turn in turns[1:])
    else:
        assert all(turn.think == 0 for turn in turns[1:])
