"""KV swap, and the pool resized under load, step by step."""

from __future__ import annotations

import pytest

from slotdeck.engine.core.events import EventKind
from slotdeck.engine.core.invariants import check_scheduler
from slotdeck.engine.core.request import State
from slotdeck.engine.core.step import SchedulerOutput
from slotdeck.engine.settings import SettingsError
from tests.support.core_engine import Engine

PROMPT = list(range(100, 180))
"""80 tokens: five full blocks."""


def swapping(swap_space: int) -> tuple[Engine, list[SchedulerOutput]]:
    engine = Engine(blocks=6, slots=2, context=96, preemption="swap", swap_space=swap_space)
    engine.add(30, output=60)
    engine.add(30, output=60)
    plans = []
    while engine.scheduler.has_work:
        plans.append(engine.step())
    return engine, plans


def test_kv_05_swapped_requests_come_back_and_compute_nothing_again() -> None:
    engine, plans = swapping(10_000)
    outs = [swap for plan in plans for swap in plan.swap_outs]
    ins = [swap for plan in plans for swap in plan.swap_ins]
    assert outs
    assert [(swap.request_id, len(swap.block_ids)) for swap in outs] == [
        (swap.request_id, len(swap.block_ids)) for swap in ins
    ]
    assert sum(plan.num_prefill_tokens for plan in plans) == 60
    assert engine.scheduler.swapped_bytes == 0
    resumed = [event for event in engine.events if event.kind is EventKind.RESUMED]
    assert all(event.tokens == 0 and event.swapped_bytes > 0 for event in resumed)


@pytest.mark.parametrize("swap_space", [0, 150])
def test_kv_06_without_room_in_host_memory_preemption_recomputes(swap_space: int) -> None:
    engine, plans = swapping(swap_space)
    assert not any(plan.swap_outs or plan.swap_ins for plan in plans)
    assert any(event.kind is EventKind.PREEMPTED for event in engine.events)


def test_host_memory_of_a_cancelled_request_is_given_back() -> None:
    engine = Engine(blocks=6, slots=2, context=96, preemption="swap", swap_space=10_000)
    first, second = engine.add(30, output=60), engine.add(30, output=60)
    while second.state is not State.PREEMPTED:
        engine.step()
    assert engine.scheduler.swapped_bytes > 0
    engine.scheduler.cancel(second.id, engine.now)
    assert engine.scheduler.swapped_bytes == 0
    assert engine.step().swap_drops == (second.id,)
    engine.scheduler.cancel(first.id, engine.now)
    engine.run_to_end()


def test_a_failed_step_turns_swapped_into_recompute() -> None:
    engine = Engine(blocks=6, slots=2, context=96, preemption="swap", swap_space=10_000)
    engine.add(30, output=60)
    second = engine.add(30, output=60)
    while second.state is not State.PREEMPTED:
        engine.step()
    engine.scheduler.fail_step(engine.plan(), "injected", engine.now)
    check_scheduler(engine.scheduler)
    assert second.swapped_tokens == 0
    engine.run_to_end()
    assert second.state is State.FINISHED
    assert second.num_output_tokens == 60


def test_kv_pool_grows_and_shrinks_under_load_without_losing_a_token() -> None:
    engine = Engine(blocks=20, slots=4, context=96, queue=8)
    requests = [engine.add(30, output=50) for _ in range(4)]
    for step in range(60):
        engine.step()
        if step % 10 == 0:
            engine.scheduler.resize([8, 30, 6, 20][step // 10 % 4], engine.now)
            check_scheduler(engine.scheduler)
    engine.run_to_end()
    assert all(request.state is State.FINISHED and request.num_output_tokens == 50 for request in requests)


def test_shrinking_gives_up_cached_prefixes_before_it_preempts() -> None:
    engine = Engine(blocks=32, context=128)
    engine.add(PROMPT, output=1)
    engine.run_to_end()
    running = engine.add(30, output=60)
    engine.step()
    moves, events = engine.scheduler.resize(8, engine.now)
    assert events == []
    assert running.state is State.RUNNING
    assert all(block_id < 8 for block_id in running.block_ids)
    assert set(moves) >= set()
    engine.run_to_end()


def test_a_pool_that_could_not_hold_the_accepted_is_refused_with_the_least() -> None:
    engine = Engine(blocks=64, context=256)
    engine.add(100, output=156)
    with pytest.raises(SettingsError, match="at least 256 tokens"):
        engine.scheduler.resize(15, engine.now)
    engine.scheduler.resize(16, engine.now)
    engine.run_to_end()
