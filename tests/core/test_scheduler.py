"""The scheduler's promises one by one, with hand-made steps; the rows of the fault list that it answers, by id."""

from __future__ import annotations

import pytest

from slotdeck.engine.core.block_pool import BlockPool, PoolExhaustedError
from slotdeck.engine.core.events import EventKind, QueueFullError, RequestTooLargeError
from slotdeck.engine.core.invariants import check_scheduler
from slotdeck.engine.core.request import FinishReason, State
from slotdeck.engine.core.step import ModelRunnerOutput, SchedulerOutput
from slotdeck.engine.settings import SettingsError
from tests.support.core_engine import Engine, shares


def test_a_freed_slot_is_taken_in_the_next_step() -> None:
    engine = Engine(slots=1)
    first, second = engine.add(8, output=2), engine.add(8)
    engine.step()
    engine.step()
    assert first.state is State.FINISHED
    assert first.finish_reason is FinishReason.LENGTH
    assert shares(engine.step()) == {second.id: 8}


def test_prefill_and_decode_share_a_step() -> None:
    engine = Engine(budget=16)
    first = engine.add(8, output=50)
    engine.step()
    second = engine.add(40)
    for expected in ({first.id: 1, second.id: 16}, {first.id: 1, second.id: 16}, {first.id: 1, second.id: 8}):
        assert shares(engine.step()) == expected
    assert shares(engine.step()) == {first.id: 1, second.id: 1}


def test_budget_gives_three_quarters_to_the_oldest_and_one_to_the_shortest() -> None:
    engine = Engine(budget=64)
    oldest, middle, shortest = engine.add(200), engine.add(50), engine.add(20)
    assert shares(engine.step()) == {oldest.id: 48, shortest.id: 16}
    assert shares(engine.step()) == {oldest.id: 60, shortest.id: 4}
    assert shares(engine.step()) == {oldest.id: 48, middle.id: 16, shortest.id: 1}


def test_budget_left_over_by_the_oldest_goes_to_the_others() -> None:
    engine = Engine(budget=64)
    requests = [engine.add(n) for n in (10, 30, 12)]
    assert shares(engine.step()) == {request.id: n for request, n in zip(requests, (10, 30, 12), strict=True)}


def test_sch_01_a_long_prompt_never_takes_more_than_the_budget_from_a_running_stream() -> None:
    engine = Engine(blocks=200, context=2048, budget=32)
    stream = engine.add(4, output=200)
    engine.step()
    engine.add(1800)
    for _ in range(50):
        plan = engine.step()
        assert plan.rows[0].request is stream
        assert plan.num_prefill_tokens <= 32


def test_sch_03_every_running_decode_advances_in_each_step_of_a_burst() -> None:
    engine = Engine(blocks=200, slots=8, queue=16, budget=16)
    stream = engine.add(4, output=60)
    engine.step()
    for step in range(40):
        if step % 4 == 0:
            engine.add(50)
        before = stream.num_output_tokens
        engine.step()
        assert stream.num_output_tokens == before + 1


def test_con_11_one_slot_and_a_queue_of_one_take_two_of_six() -> None:
    engine = Engine(slots=1, queue=1)
    taken = [engine.add(4), engine.add(4)]
    for _ in range(4):
        with pytest.raises(QueueFullError, match="the queue is full"):
            engine.add(4)
    engine.step()
    assert [request.state for request in taken] == [State.RUNNING, State.WAITING]


def test_con_14_the_depth_counts_only_those_who_wait() -> None:
    engine = Engine(slots=2, queue=2)
    for _ in range(4):
        engine.add(4)
    with pytest.raises(QueueFullError):
        engine.add(4)
    engine.step()
    assert len(engine.scheduler.running) == 2
    assert len(engine.scheduler.waiting) == 2
    with pytest.raises(QueueFullError) as caught:
        engine.add(4)
    assert (caught.value.waiting, caught.value.depth) == (2, 2)


def test_a_refusal_counts_only_those_who_really_wait() -> None:
    engine = Engine(slots=2, queue=0)
    engine.add(4), engine.add(4)  # no step yet: both are still in the queue, and both are about to run
    with pytest.raises(QueueFullError, match=r"nobody may wait \(queue 0\), and no slot is free") as caught:
        engine.add(4)
    assert (caught.value.waiting, caught.value.depth) == (0, 0)
    engine.change(queue=4)
    engine.add(4)
    with pytest.raises(QueueFullError, match="1 of 4 waiting, and this request wants 4 places"):
        engine.scheduler.add(*(engine.make(4) for _ in range(4)))


def test_a_queue_of_zero_still_serves_while_a_slot_is_free() -> None:
    engine = Engine(slots=1, queue=0)
    engine.add(4)
    with pytest.raises(QueueFullError):
        engine.add(4)


def test_con_03_cancelled_in_the_queue_leaves_at_once_and_is_never_computed() -> None:
    engine = Engine(slots=1)
    running, *queued = [engine.add(4, output=20) for _ in range(4)]
    engine.step()
    for request in queued[:2]:
        engine.scheduler.cancel(request.id, engine.now)
    assert list(engine.scheduler.waiting) == queued[2:]
    engine.run_to_end()
    assert running.state is queued[2].state is State.FINISHED
    assert all(request.num_computed_tokens == 0 and request.timeline.scheduled is None for request in queued[:2])


def test_con_02_cancelled_between_prefill_chunks_never_decodes() -> None:
    engine = Engine(budget=16)
    request = engine.add(200)
    plan = engine.plan()
    engine.scheduler.cancel(request.id, engine.now)
    assert request.state is State.RUNNING, "the step in flight still uses its blocks"
    engine.commit(plan)
    assert request.state is State.CANCELLED
    assert request.num_output_tokens == 0
    assert engine.scheduler.pool.num_used == 0


def test_cancelled_while_preempted_gives_everything_back() -> None:
    engine = Engine(blocks=4, slots=2, context=64)
    engine.add(30, output=30)
    victim = engine.add(16, output=30)
    while victim.state is not State.PREEMPTED:
        engine.step()
    engine.scheduler.cancel(victim.id, engine.now)
    check_scheduler(engine.scheduler)
    assert victim.state is State.CANCELLED
    engine.run_to_end()
    assert engine.scheduler.pool.num_used == 0


def test_kv_01_the_pool_always_holds_a_full_context_so_whoever_is_accepted_is_served() -> None:
    with pytest.raises(SettingsError, match="at most 64 tokens"):
        Engine(blocks=4, context=128)
    engine = Engine(blocks=4, context=64, slots=4)
    largest = engine.add(40, output=24)
    small = engine.add(8)
    engine.run_to_end()
    assert largest.state is small.state is State.FINISHED


def test_cut_prompts_do_not_exist_beyond_the_context_is_refused() -> None:
    with pytest.raises(RequestTooLargeError, match="context of 512"):
        Engine().add(510, output=3)


@pytest.mark.parametrize("slots", [2, 3])
def test_kv_02_long_requests_on_a_small_pool_all_finish_and_the_oldest_is_never_preempted(slots: int) -> None:
    engine = Engine(blocks=9, slots=slots, context=96)
    requests = [engine.add(20, output=70) for _ in range(3)]
    engine.run_to_end()
    assert all(request.state is State.FINISHED and request.num_output_tokens == 70 for request in requests)
    assert requests[0].num_preemptions == 0
    assert sum(request.num_preemptions for request in requests) > 0
    resumed = [event for event in engine.events if event.kind is EventKind.RESUMED]
    assert len(resumed) <= 8, "thrashing: preempted again and again with nothing gained"


def test_kv_04_a_preempted_request_keeps_its_tokens_its_slot_and_its_count() -> None:
    engine = Engine(blocks=6, slots=2, context=96)
    engine.add(30, output=60)
    victim = engine.add(30, output=60)
    while victim.state is not State.PREEMPTED:
        engine.step()
    tokens, slot = list(victim.token_ids), victim.slot
    preempted = [event for event in engine.events if event.kind is EventKind.PREEMPTED]
    assert [event.request for event in preempted] == [victim]
    assert preempted[0].tokens == len(tokens) - 1
    while victim.state is State.PREEMPTED:
        assert victim.block_ids == []
        engine.step()
    assert victim.token_ids[: len(tokens)] == tokens
    assert victim.slot == slot
    engine.run_to_end()
    assert victim.num_output_tokens == 60
    assert victim.stalled > 0
    assert len(victim.gaps) == 59
    assert max(victim.gaps) >= victim.stalled, "the stall counts in the ITL"


def test_kv_03_nobody_new_passes_a_preempted_request() -> None:
    engine = Engine(blocks=6, slots=3, context=96)
    engine.add(30, output=60)
    victim = engine.add(30, output=60)
    while victim.state is not State.PREEMPTED:
        engine.step()
    newcomer = engine.add(4)
    while victim.state is State.PREEMPTED:
        engine.step()
        assert newcomer.state is State.WAITING or victim.state is State.RUNNING


def test_kv_08_mixed_ends_leave_no_block_behind() -> None:
    engine = Engine(blocks=10, slots=3, context=96, queue=3)
    for round_number in range(500):
        try:
            request = engine.add(10 + round_number % 40, output=1 + round_number % 30)
        except QueueFullError:
            request = None
        if request is not None and round_number % 5 == 0:
            engine.scheduler.cancel(request.id, engine.now)
        engine.step() if engine.scheduler.has_work else None
        if engine.scheduler.running and round_number % 7 == 0:
            engine.scheduler.cancel(engine.scheduler.running[-1].id, engine.now)
        if engine.scheduler.running and round_number % 11 == 0:
            engine.scheduler.fail_step(engine.plan(), "injected", engine.now) if engine.scheduler.has_work else None
    engine.run_to_end()
    assert engine.scheduler.pool.num_used == 0
    assert engine.scheduler.num_in_flight == 0


def test_run_01_lowering_slots_kills_nobody_and_admits_nobody_until_below() -> None:
    engine = Engine(slots=4)
    running = [engine.add(8, output=6 + 4 * n) for n in range(4)]
    engine.step()
    waiting = engine.add(8)
    engine.scheduler.update(engine.scheduler.settings.model_copy(update={"slots": 2}))
    while len(engine.scheduler.running) > 2:
        engine.step()
        assert waiting.state is State.WAITING or len(engine.scheduler.running) <= 2
    engine.run_to_end()
    assert all(request.state is State.FINISHED for request in [*running, waiting])
    assert waiting.timeline.scheduled is not None
    assert waiting.timeline.scheduled >= sorted(r.timeline.ended or 0 for r in running)[2]


def test_run_02_more_slots_than_blocks_is_refused_with_the_maximum() -> None:
    engine = Engine(blocks=32)
    with pytest.raises(SettingsError, match="at most 32"):
        engine.scheduler.update(engine.scheduler.settings.model_copy(update={"slots": 64}))
    assert engine.scheduler.settings.slots == 4


def test_run_03_a_shorter_context_binds_newcomers_only() -> None:
    engine = Engine(context=512)
    running = engine.add(300, output=100)
    engine.step()
    engine.scheduler.update(engine.scheduler.settings.model_copy(update={"context": 128}))
    with pytest.raises(RequestTooLargeError, match="context of 128"):
        engine.add(100, output=100)
    engine.run_to_end()
    assert running.num_output_tokens == 100


def test_context_beyond_the_pool_is_refused_with_the_maximum() -> None:
    engine = Engine(blocks=64)
    with pytest.raises(SettingsError, match="at most 1024 tokens"):
        engine.scheduler.update(engine.scheduler.settings.model_copy(update={"context": 4096}))


def test_a_shorter_queue_keeps_those_who_wait() -> None:
    engine = Engine(slots=1, queue=4)
    requests = [engine.add(4) for _ in range(5)]
    engine.step()
    engine.scheduler.update(engine.scheduler.settings.model_copy(update={"queue": 1}))
    with pytest.raises(QueueFullError):
        engine.add(4)
    engine.run_to_end()
    assert all(request.state is State.FINISHED for request in requests)


def test_a_stop_string_drops_what_was_computed_beyond_it() -> None:
    engine = Engine()
    request = engine.add(8, output=50)
    for _ in range(6):
        engine.step()
    plan = engine.plan()
    engine.scheduler.finish(request.id, 3, engine.now)
    engine.commit(plan)
    assert request.state is State.FINISHED
    assert request.finish_reason is FinishReason.STOP
    assert request.num_output_tokens == 3


def test_a_step_that_fails_does_not_fail_who_had_the_whole_answer_or_left() -> None:
    engine = Engine()
    done, left, other = engine.add(8, output=50), engine.add(8, output=50), engine.add(8, output=50)
    for _ in range(4):
        engine.step()
    plan = engine.plan()
    engine.scheduler.finish(done.id, 3, engine.now)
    engine.scheduler.cancel(left.id, engine.now)
    engine.scheduler.fail_step(plan, "injected", engine.now)
    check_scheduler(engine.scheduler)
    assert [request.state for request in (done, left, other)] == [State.FINISHED, State.CANCELLED, State.FAILED]
    assert done.num_output_tokens == 3


def test_why_somebody_was_preempted_is_told() -> None:
    engine = Engine(blocks=32, slots=2, context=256)
    first, second = engine.add(130, output=60), engine.add(130, output=60)
    while not second.num_output_tokens:
        engine.step()
    _, events = engine.scheduler.resize(16, engine.now)
    assert [(event.request, event.cause) for event in events] == [(second, "pool_shrunk")]
    engine.scheduler.resize(32, engine.now)
    while second.state is not State.RUNNING:
        engine.step()
    plan = engine.plan()
    only_first = SchedulerOutput(rows=tuple(row for row in plan.rows if row.request is first), num_decodes=0)
    events = engine.scheduler.fail_step(only_first, "injected", engine.now)
    preempted = [event for event in events if event.kind is EventKind.PREEMPTED]
    assert [(event.request, event.cause) for event in preempted] == [(second, "step_failed")]


def test_num_02_one_bad_row_fails_one_request() -> None:
    engine = Engine()
    good, bad = engine.add(8), engine.add(8)
    plan = engine.plan()
    engine.scheduler.update_from_output(
        plan, ModelRunnerOutput(tokens={good.id: 5}, failures={bad.id: "NaN logits"}), engine.now
    )
    assert bad.state is State.FAILED
    assert bad.failure == "NaN logits"
    engine.run_to_end()
    assert good.state is State.FINISHED


def test_pool_hands_out_low_ids_first_and_takes_nothing_when_it_cannot_give_all() -> None:
    pool = BlockPool(4)
    assert pool.allocate(2) == [0, 1]
    pool.release([0])
    assert pool.allocate(1) == [0]
    with pytest.raises(PoolExhaustedError, match="3 blocks asked for, 2 of 4 available"):
        pool.allocate(3)
    assert pool.num_free == 2


def test_a_shared_block_is_free_when_its_last_holder_lets_go() -> None:
    pool = BlockPool(2)
    (block,) = pool.allocate(1)
    pool.share([block])
    pool.release([block])
    assert pool.refcount(block) == 1
    assert pool.num_free == 1
    pool.release([block])
    assert pool.num_free == 2
    with pytest.raises(ValueError, match="held by nobody"):
        pool.release([block])


def test_kv_07_waiters_hold_no_blocks_that_a_large_head_needs() -> None:
    engine = Engine(blocks=12, slots=6, context=192, queue=16)
    engine.add(40, output=60)
    engine.step()
    large = engine.add(150, output=40)
    small = [engine.add(20, output=20) for _ in range(8)]
    while engine.scheduler.has_work:
        assert engine.step().rows, "nothing runs while work exists"
    assert all(request.state is State.FINISHED for request in [large, *small])


def test_kv_17_twenty_long_answers_on_sixteen_blocks_all_finish() -> None:
    engine = Engine(blocks=16, slots=16, context=256, queue=32)
    requests = [engine.add(8, output=60) for _ in range(20)]
    engine.run_to_end()
    assert all(request.state is State.FINISHED and request.num_output_tokens == 60 for request in requests)
    assert requests[0].num_preemptions == 0


def test_run_05_everything_turned_at_once_never_sticks() -> None:
    engine = Engine(blocks=40, slots=8, context=128, queue=16)
    requests = [engine.add(20, output=60) for _ in range(12)]
    for number in range(40):
        engine.step()
        engine.change(slots=1 + number % 8, mode=["static", "serial", "continuous"][number % 3], budget=1 + number)
        if number % 8 == 0:
            engine.scheduler.resize(16 + number, engine.now)
    engine.run_to_end()
    assert all(request.state is State.FINISHED for request in requests)
    assert engine.scheduler.pool.num_used == 0


def test_run_07_short_requests_take_as_many_steps_at_the_end_as_at_the_start() -> None:
    engine = Engine(blocks=64, slots=3, queue=16)
    steps = []
    for _ in range(300):
        for _ in range(5):
            engine.add(30, output=8)
        count = 0
        while engine.scheduler.has_work:
            engine.step()
            count += 1
        steps.append(count)
    assert set(steps[1:]) == {steps[0]}
