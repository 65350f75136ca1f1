"""Batching modes, step by step."""

from __future__ import annotations

import pytest

from slotdeck.engine.core.invariants import check_scheduler
from slotdeck.engine.core.request import Request, State
from slotdeck.engine.core.step import SchedulerOutput
from tests.support.core_engine import Engine, shares


def test_serial_runs_one_at_a_time_whatever_the_slots() -> None:
    engine = Engine(mode="serial", slots=4)
    requests = [engine.add(8, output=5) for _ in range(3)]
    while engine.scheduler.has_work:
        engine.step()
        assert len(engine.scheduler.running) <= 1
    ends = [request.timeline.ended for request in requests]
    assert ends == sorted(ends, key=lambda end: end or 0)
    assert requests[1].timeline.scheduled is not None
    assert requests[1].timeline.scheduled > (ends[0] or 0)


def test_static_holds_every_slot_until_the_longest_has_finished() -> None:
    engine = Engine(mode="static", slots=3, queue=8)
    short, long = engine.add(8, output=2), engine.add(8, output=12)
    engine.step()
    late = engine.add(8)
    while long.state is not State.FINISHED:
        assert late.state is State.WAITING, "a late arrival joined the batch"
        engine.step()
        if short.state is State.FINISHED and long.state is State.RUNNING:
            assert engine.scheduler.held == [short]
            assert short.block_ids == []
            assert short in engine.scheduler.admitted()
    assert engine.scheduler.held == []
    assert shares(engine.step()) == {late.id: 8}


def test_static_finishes_all_prefills_before_its_first_decode() -> None:
    engine = Engine(mode="static", slots=2, budget=16)
    quick, slow = engine.add(8, output=4), engine.add(60, output=4)
    seen: list[SchedulerOutput] = []
    while not slow.num_output_tokens:
        seen.append(engine.step())
    assert quick.num_output_tokens == 1
    assert all(plan.num_decodes == 0 for plan in seen)
    assert engine.step().num_decodes == 2


def test_static_takes_what_waits_and_no_more_than_the_slots() -> None:
    engine = Engine(mode="static", slots=2, queue=8)
    requests = [engine.add(8, output=3) for _ in range(5)]
    engine.step()
    assert [request.state for request in requests].count(State.RUNNING) == 2
    engine.run_to_end()
    assert all(request.state is State.FINISHED for request in requests)


def several(engine: Engine, answers: int, output: int = 6, prompt: int = 80) -> list[Request]:
    tokens = [7_000_000 + i for i in range(prompt)]
    requests = [engine.make(tokens, output, user="several") for _ in range(answers)]
    engine.scheduler.add(*requests)
    return requests


def test_static_keeps_slots_for_further_answers_to_a_prompt_of_the_batch() -> None:
    engine = Engine(mode="static", slots=4, queue=16)
    answers, others = several(engine, 3), [engine.add(8, output=6) for _ in range(4)]
    engine.step()
    assert [request.state for request in others].count(State.RUNNING) == 1, "two slots are kept for the answers"
    while any(request.state is State.WAITING for request in answers):
        assert engine.step().num_decodes == 0, "somebody decoded before the batch had its prompts"
        assert [request.state for request in others].count(State.RUNNING) == 1
    assert [request.cached_tokens for request in answers] == [0, 64, 64]
    while answers[0].state is State.RUNNING:
        engine.step()
    assert len({request.slot for request in [*answers, others[0]]}) == 4
    engine.run_to_end()
    assert all(request.state is State.FINISHED for request in [*answers, *others])


def test_static_answers_beyond_the_slots_are_the_next_batch() -> None:
    engine = Engine(mode="static", slots=2, queue=16)
    answers = several(engine, 5)
    batches: list[list[Request]] = []
    while engine.scheduler.has_work:
        before = len(engine.scheduler.admitted())
        engine.step()
        if before == 0:
            batches.append([])
        batches[-1] += [request for request in engine.scheduler.running if request not in batches[-1]]
    assert batches == [answers[:2], answers[2:4], answers[4:]]


def test_a_first_answer_of_one_token_ends_before_the_others_begin_and_their_slots_are_still_theirs() -> None:
    engine = Engine(mode="static", slots=2, queue=16)
    answers = several(engine, 2, output=1, prompt=40)
    others = [engine.add(8, output=6) for _ in range(2)]
    engine.step()
    assert answers[0].state is State.FINISHED
    assert engine.scheduler.held == [answers[0]]
    engine.step()
    assert answers[1].state is State.FINISHED
    assert [request.state for request in others] == [State.WAITING, State.WAITING]
    engine.run_to_end()
    assert all(request.state is State.FINISHED for request in others)


@pytest.mark.parametrize("how", ["cancelled", "fewer slots", "another mode", "first cancelled"])
def test_a_slot_is_kept_for_nobody_who_will_not_come(how: str) -> None:
    engine = Engine(mode="static", slots=2, queue=16, budget=16)
    first, second = several(engine, 2)
    engine.step()
    assert engine.scheduler.running_set.reserved == [second]
    if how == "cancelled":
        engine.scheduler.cancel(second.id, engine.now)
    elif how == "first cancelled":
        engine.scheduler.cancel(first.id, engine.now)
    else:
        engine.change(**({"slots": 1} if how == "fewer slots" else {"mode": "continuous"}))
    check_scheduler(engine.scheduler)
    assert (second in engine.scheduler.running_set.reserved) is (how == "first cancelled")
    engine.run_to_end()
    ended = State.CANCELLED if how == "cancelled" else State.FINISHED
    assert second.state is ended
    assert engine.scheduler.held == []


@pytest.mark.parametrize(
    ("before", "after"), [("continuous", "static"), ("static", "serial"), ("serial", "continuous")]
)
def test_a_new_mode_takes_over_when_what_runs_has_drained(before: str, after: str) -> None:
    engine = Engine(mode=before, slots=3, queue=8)
    first = [engine.add(8, output=6) for _ in range(2)]
    engine.step()
    running = [request for request in first if request.state is State.RUNNING]
    engine.change(mode=after)
    late = engine.add(8, output=6)
    while any(request.state is State.RUNNING for request in running):
        engine.step()
        assert late.state is State.WAITING
        if engine.scheduler.running:
            assert engine.scheduler.policy.name == before
    engine.step()
    assert engine.scheduler.policy.name == after
    engine.run_to_end()
    assert late.state is State.FINISHED
