"""Batching modes, prefix cache, KV swap, live resize, fairness and the ITL target, step by step."""

from __future__ import annotations

import pytest

from engine.core.block_pool import BlockPool, content_of
from engine.core.budget import LEAST_BUDGET, StepCost
from engine.core.events import EventKind, QueueFullError
from engine.core.request import Request, State, StepPlan
from engine.settings import SettingsError
from tests.core.simple_engine import Engine, shares

PROMPT = list(range(100, 180))
"""80 tokens: five full blocks."""


# -- modes ------------------------------------------------------------------------------------------------------


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
    seen: list[StepPlan] = []
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
    assert engine.scheduler.slots.reserved == [second]
    if how == "cancelled":
        engine.scheduler.cancel(second.id, engine.now)
    elif how == "first cancelled":
        engine.scheduler.cancel(first.id, engine.now)
    else:
        engine.change(**({"slots": 1} if how == "fewer slots" else {"mode": "continuous"}))
    engine.scheduler.check()
    assert (second in engine.scheduler.slots.reserved) is (how == "first cancelled")
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


# -- prefix cache -----------------------------------------------------------------------------------------------


def test_a_repeated_prompt_computes_only_what_is_new() -> None:
    engine = Engine()
    engine.add([*PROMPT, 1, 2, 3])
    engine.run_to_end()
    again = engine.add([*PROMPT, 7, 8])
    assert shares(engine.step()) == {again.id: 2}
    assert again.cached_tokens == 80
    assert engine.scheduler.pool.num_reclaimable >= 0


def test_a_fully_cached_prompt_still_computes_its_last_token() -> None:
    engine = Engine()
    engine.add(PROMPT)
    engine.run_to_end()
    again = engine.add(PROMPT)
    plan = engine.step()
    assert again.cached_tokens == 64
    assert shares(plan) == {again.id: 16}
    assert again.num_output_tokens == 1


def test_the_next_turn_of_a_chat_reuses_the_answer_too() -> None:
    engine = Engine()
    turn = engine.add(PROMPT, output=40)
    engine.run_to_end()
    following = engine.add([*turn.token_ids, 1, 2, 3])
    engine.step()
    assert following.cached_tokens == 112, "all full blocks of prompt and answer but for the newest token"


def test_kv_14_prefixes_of_others_are_not_found_unless_sharing_is_on() -> None:
    engine = Engine()
    engine.add(PROMPT, user="A")
    engine.run_to_end()
    other = engine.add(PROMPT, user="B")
    engine.run_to_end()
    assert other.cached_tokens == 0
    engine.change(prefix_sharing=True)
    for user, expected in (("A", 0), ("B", 64)):
        request = engine.add(PROMPT, user=user)
        engine.run_to_end()
        assert request.cached_tokens == expected, "what was kept apart stays apart; what is shared is shared"


def test_kv_13_a_hit_compares_tokens_and_partition_not_only_the_digest() -> None:
    pool = BlockPool(4)
    (block,) = pool.allocate(1)
    real = content_of(b"", range(16), "A")
    pool.publish(block, real)
    forged = type(real)(real.digest, real.parent, tuple(range(1, 17)), "A")
    assert pool.match([real]) == [block]
    assert pool.match([forged]) == []
    assert pool.match([content_of(b"", range(16), "B")]) == []


def test_two_that_compute_the_same_prompt_at_once_do_not_share_what_is_not_computed() -> None:
    engine = Engine(budget=16)
    first, second = engine.add(PROMPT), engine.add(PROMPT)
    engine.step()
    assert not set(first.block_ids) & set(second.block_ids)
    engine.run_to_end()
    assert engine.scheduler.pool.num_used == 0


def test_cached_prefixes_give_way_least_recently_used_first() -> None:
    engine = Engine(blocks=12, context=96)
    engine.add(PROMPT, output=1)
    engine.run_to_end()
    engine.add(list(range(300, 380)), output=1)
    engine.run_to_end()
    assert engine.scheduler.pool.num_reclaimable == 10
    engine.add(60, output=4)
    engine.run_to_end()
    newer, older = engine.add(list(range(300, 380)), output=1), None
    engine.run_to_end()
    older = engine.add(PROMPT, output=1)
    engine.run_to_end()
    assert newer.cached_tokens == 64
    assert older.cached_tokens < 64


def test_sch_06_a_helper_request_does_not_cost_the_chat_its_prefix() -> None:
    engine = Engine(blocks=32, slots=1)
    chat = engine.add(PROMPT, output=16)
    engine.run_to_end()
    for _ in range(2):
        engine.add(20, output=4)
        engine.run_to_end()
    following = engine.add([*chat.token_ids, 1, 2])
    engine.run_to_end()
    assert following.cached_tokens >= 80


def test_kv_11_the_match_is_made_anew_at_each_attempt() -> None:
    engine = Engine(blocks=12, context=128, slots=2)
    engine.add(PROMPT, output=1)
    engine.run_to_end()
    running = engine.add(100, output=20)
    engine.step()
    waiting = engine.add(PROMPT, output=20)
    engine.step()
    assert waiting.state is State.WAITING, "its prefix is there, but not the room"
    engine.run_to_end()
    assert running.state is waiting.state is State.FINISHED


def test_the_cache_can_be_turned_off_and_forgotten_live() -> None:
    engine = Engine()
    engine.add(PROMPT)
    engine.run_to_end()
    engine.change(prefix_cache=False)
    assert engine.scheduler.pool.num_reclaimable == 0
    request = engine.add(PROMPT)
    engine.run_to_end()
    assert request.cached_tokens == 0
    assert engine.scheduler.pool.num_free == engine.scheduler.pool.num_blocks


def test_kv_09_cached_blocks_are_not_live() -> None:
    engine = Engine(blocks=64)
    for _ in range(8):
        engine.add(48, output=2)
        engine.run_to_end()
    pool = engine.scheduler.pool
    assert pool.num_used == 0
    assert pool.num_reclaimable == 24
    assert pool.num_free == 40


# -- several answers to one prompt ------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_several_answers_share_one_prefill(prefix_cache: bool) -> None:
    engine = Engine(budget=32, prefix_cache=prefix_cache)
    answers = [engine.make(PROMPT, output=8) for _ in range(3)]
    engine.scheduler.add(*answers)
    computed = 0
    while engine.scheduler.has_work:
        computed += engine.step().num_prefill_tokens
    assert all(answer.state is State.FINISHED and answer.num_output_tokens == 8 for answer in answers)
    assert computed == 80 + 2 * 16
    assert engine.scheduler.pool.num_used == 0


def test_several_answers_take_their_places_at_once_or_are_refused_together() -> None:
    engine = Engine(slots=1, queue=2)
    engine.add(8, output=20)
    engine.step()
    with pytest.raises(QueueFullError):
        engine.scheduler.add(*(engine.make(8) for _ in range(3)))
    assert len(engine.scheduler.waiting) == 0
    engine.scheduler.add(*(engine.make(8) for _ in range(2)))
    assert len(engine.scheduler.waiting) == 2


def test_followers_do_not_wait_for_a_leader_that_is_gone() -> None:
    engine = Engine(budget=16)
    answers = [engine.make(PROMPT, output=4) for _ in range(2)]
    engine.scheduler.add(*answers)
    engine.step()
    engine.scheduler.cancel(answers[0].id, engine.now)
    engine.run_to_end()
    assert answers[1].state is State.FINISHED


# -- swap -------------------------------------------------------------------------------------------------------


def swapping(swap_space: int) -> tuple[Engine, list[StepPlan]]:
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
    engine.scheduler.check()
    assert second.swapped_tokens == 0
    engine.run_to_end()
    assert second.state is State.FINISHED
    assert second.num_output_tokens == 60


# -- resize -----------------------------------------------------------------------------------------------------


def test_kv_pool_grows_and_shrinks_under_load_without_losing_a_token() -> None:
    engine = Engine(blocks=20, slots=4, context=96, queue=8)
    requests = [engine.add(30, output=50) for _ in range(4)]
    for step in range(60):
        engine.step()
        if step % 10 == 0:
            engine.scheduler.resize([8, 30, 6, 20][step // 10 % 4], engine.now)
            engine.scheduler.check()
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


# -- fairness ---------------------------------------------------------------------------------------------------


def test_sch_05_one_user_s_thirty_jobs_do_not_make_another_wait_for_all() -> None:
    engine = Engine(slots=1, queue=64)
    jobs = [engine.add(8, output=2, user="A") for _ in range(30)]
    engine.step()
    single = engine.add(8, output=2, user="B")
    while single.state is not State.FINISHED:
        engine.step()
    assert sum(job.state is State.FINISHED for job in jobs) <= 2


def test_users_share_by_tokens_not_by_requests() -> None:
    engine = Engine(slots=1, queue=64, context=512)
    for _ in range(10):
        engine.add(100, output=20, user="long")
    for _ in range(60):
        engine.add(10, output=2, user="short") if len(engine.scheduler.waiting) < 60 else None
    served = {"long": 0, "short": 0}
    for _ in range(400):
        plan = engine.step()
        for row in plan.rows:
            served[row.request.user] += row.count
        if len({request.user for request in engine.scheduler.requests()}) < 2:
            break
    assert 0.5 < served["long"] / served["short"] < 2


def test_somebody_who_was_away_has_saved_up_no_credit() -> None:
    engine = Engine(slots=1, queue=64)
    for _ in range(20):
        engine.add(8, output=4, user="A")
    for _ in range(40):
        engine.step()
    order = [engine.add(8, output=4, user="B") for _ in range(10)]
    engine.run_to_end()
    ends = sorted(order, key=lambda request: request.timeline.ended or 0)
    assert ends == order


def test_nobody_waits_for_ever_behind_users_who_keep_coming() -> None:
    """Each newcomer has had nothing yet; who has had much must still come to their turn."""
    engine = Engine(slots=1, queue=8)
    engine.add(100, output=100, user="old")
    while engine.scheduler.has_work:
        engine.step()
    old = engine.add(10, output=2, user="old")
    newcomers = 0
    while old.state is State.WAITING:
        while len(engine.scheduler.waiting) < 4:
            newcomers += 1
            engine.add(10, output=10, user=f"new {newcomers}")
        engine.step()
        assert newcomers < 100
    assert newcomers > 4, "what somebody had counts"


def test_run_07_users_who_are_gone_are_forgotten() -> None:
    engine = Engine(slots=3, queue=8)
    for number in range(3000):
        engine.add(20, output=3, user=f"user {number}")
        while len(engine.scheduler.waiting) > 4:
            engine.step()
    engine.run_to_end()
    assert len(engine.scheduler.waiting._times) < 2000
    assert engine.scheduler.waiting.num_in_flight == 0


def test_a_head_that_cannot_be_placed_is_passed_a_few_times_and_then_protected() -> None:
    engine = Engine(blocks=12, slots=8, context=192, queue=32)
    engine.add(100, output=60)
    engine.step()
    large = engine.add(100, output=60)
    small = [engine.add(4, output=40) for _ in range(8)]
    engine.step()
    admitted = [request for request in small if request.state is State.RUNNING]
    assert large.state is State.WAITING
    assert 1 <= len(admitted) <= 4
    engine.run_to_end()
    assert large.state is State.FINISHED


# -- a budget that keeps a promise ------------------------------------------------------------------------------


def measured(noise: float = 0.0) -> StepCost:
    cost = StepCost()
    for step in range(200):
        decodes, prefill, context = 1 + step % 4, (step % 5) * 16, 500 + 10 * step
        wobble = noise * ((step * 7) % 11 - 5)
        cost.observe(decodes, prefill, context, 0.02 + 0.001 * decodes + 0.0005 * prefill + 1e-6 * context + wobble)
    return cost


def test_the_cost_of_a_step_is_learnt() -> None:
    cost = measured()
    assert cost.predict(3, 32, 1000) == pytest.approx(0.02 + 0.003 + 0.016 + 0.001, rel=0.02)


def test_the_largest_budget_keeps_the_target() -> None:
    promise = measured().promise(0.060, 4, 1000)
    assert promise is not None
    assert promise.outlook == "kept"
    assert promise.budget == pytest.approx((0.060 - 0.025) / 0.0005, abs=3)
    assert 0.058 < promise.seconds <= 0.060
    noisy = measured(noise=0.001).promise(0.060, 4, 1000)
    assert noisy is not None
    assert noisy.budget < promise.budget, "a promise about a tail leaves a margin"


def test_an_unreachable_target_gives_the_floor_and_says_so() -> None:
    promise = measured().promise(0.020, 4, 1000)
    assert promise is not None
    assert (promise.budget, promise.outlook) == (LEAST_BUDGET, "unreachable")
    assert promise.seconds == pytest.approx(0.025, rel=0.05), "what decoding alone takes"


def test_a_target_that_only_the_least_prefill_breaks_is_not_called_kept() -> None:
    """Decoding alone takes 25 ms, with the floor 33 ms: 30 ms hold only while no prompt is computed."""
    promise = measured().promise(0.030, 4, 1000)
    assert promise is not None
    assert (promise.budget, promise.outlook) == (LEAST_BUDGET, "floor")
    assert promise.seconds == pytest.approx(0.033, rel=0.05), "what such a step takes"


def test_restless_prefill_does_not_make_calm_decoding_unreachable() -> None:
    cost = StepCost()
    for step in range(256):
        prefill = 32 * (step % 2)
        cost.observe(4, prefill, 1000, 0.025 + 0.0005 * prefill + (0.020 * (step % 20 < 4) if prefill else 0.0))
    promise = cost.promise(0.032, 4, 1000)
    assert promise is not None
    assert promise.outlook == "floor"
    assert promise.seconds > 0.032


def test_a_prefill_that_reads_much_leaves_less_room() -> None:
    near, far = (measured().promise(0.060, 4, 1000, prefilled=prefilled) for prefilled in (0, 10_000))
    assert near is not None
    assert far is not None
    assert near.budget - far.budget == pytest.approx(0.010 / 0.0005, abs=2)


def test_without_measurements_nothing_is_promised() -> None:
    assert StepCost().promise(0.1, 1, 0) is None


def test_mere_decoding_is_enough_to_call_a_target_unreachable_but_not_to_choose_a_budget() -> None:
    cost = StepCost()
    for _ in range(20):
        cost.observe(4, 0, 1000, 0.025)
    promise = cost.promise(0.020, 4, 1000)
    assert promise is not None
    assert promise.outlook == "unreachable"
    assert cost.promise(0.060, 4, 1000) is None


def test_the_scheduler_follows_the_target_live() -> None:
    engine = Engine(blocks=300, context=2048, budget=64, itl_target=60)
    engine.scheduler.cost = measured()
    engine.add(8, output=200)
    engine.step()
    engine.add(1500)
    plan = engine.step()
    assert plan.num_prefill_tokens == engine.scheduler.budget_in_force
    assert 60 < plan.num_prefill_tokens < 90
    engine.change(itl_target=10)
    assert engine.step().num_prefill_tokens == LEAST_BUDGET
    assert engine.scheduler.promise is not None
    assert engine.scheduler.promise.outlook == "unreachable"
    engine.change(itl_target=25)
    assert engine.step().num_prefill_tokens == LEAST_BUDGET
    assert engine.scheduler.promise.outlook == "floor"
    engine.change(itl_target=0)
    assert (engine.scheduler.budget_in_force, engine.scheduler.promise) == (64, None)  # also before the next step
    assert engine.step().num_prefill_tokens == 64
    assert engine.scheduler.promise is None
