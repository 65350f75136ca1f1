"""The prefix cache, and several answers that share one prompt, step by step."""

from __future__ import annotations

import pytest

from slotdeck.engine.core import block_pool
from slotdeck.engine.core.block_pool import BlockPool, hash_block, hash_prompt
from slotdeck.engine.core.events import EventKind, QueueFullError
from slotdeck.engine.core.request import State
from tests.support.core_engine import Engine, shares

PROMPT = list(range(100, 180))
"""80 tokens: five full blocks."""


def test_a_repeated_prompt_computes_only_what_is_new() -> None:
    engine = Engine()
    engine.add([*PROMPT, 1, 2, 3])
    engine.run_to_end()
    again = engine.add([*PROMPT, 7, 8])
    assert shares(engine.step()) == {again.id: 2}
    assert again.cached_tokens == 80
    assert engine.scheduler.pool.num_evictable >= 0


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
    real = hash_block(b"", range(16), "A")
    pool.publish(block, real)
    forged = type(real)(real.digest, real.parent, tuple(range(1, 17)), "A")
    assert pool.match([real]) == [block]
    assert pool.match([forged]) == []
    assert pool.match([hash_block(b"", range(16), "B")]) == []


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
    assert engine.scheduler.pool.num_evictable == 10
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
    assert engine.scheduler.pool.num_evictable == 0
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
    assert pool.num_evictable == 24
    assert pool.num_free == 40


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


def test_a_prompt_hashed_before_it_is_queued_is_not_hashed_again_under_the_lock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = Engine()
    engine.add(PROMPT)
    engine.run_to_end()
    again = engine.make([*PROMPT, 7, 8])
    again.block_hashes = hash_prompt(again.token_ids, engine.scheduler.cache_salt(again.user))
    hashed: list[object] = []
    monkeypatch.setattr(block_pool, "hash_block", lambda *arguments: hashed.append(arguments))
    engine.scheduler.add(again)
    engine.step()
    assert again.cached_tokens == 80
    assert hashed == []


def test_hashes_made_before_prefixes_were_shared_are_made_anew() -> None:
    engine = Engine()
    request = engine.make(PROMPT)
    request.block_hashes = hash_prompt(request.token_ids, engine.scheduler.cache_salt(request.user))
    engine.change(prefix_sharing=True)
    engine.scheduler.add(request)
    engine.run_to_end()
    other = engine.add(PROMPT, user="somebody else")
    engine.step()
    assert other.cached_tokens == 64


def test_blocks_are_given_back_last_first_so_that_a_prefix_loses_its_end_and_not_its_beginning() -> None:
    engine = Engine(blocks=6, slots=1, context=96)
    engine.add(PROMPT[:64], output=1)
    engine.run_to_end()
    engine.add(40, output=1)  # takes the two free blocks and one of the prefix
    engine.run_to_end()
    again = engine.add(PROMPT[:64], output=1)
    engine.step()
    assert again.cached_tokens == 48


def test_only_tokens_that_the_cache_has_lost_count_as_computed_again() -> None:
    """The second request loses 48 computed tokens. The cache keeps two of its three blocks until it resumes."""
    engine = Engine(blocks=6, slots=2, context=96)
    engine.add(30, output=20)
    victim = engine.add(30, output=60)
    engine.run_to_end()
    [preempted] = [event for event in engine.events if event.kind is EventKind.PREEMPTED]
    [resumed] = [event for event in engine.events if event.kind is EventKind.RESUMED]
    assert (preempted.request, preempted.tokens) == (victim, 48)
    assert (resumed.request, resumed.tokens) == (victim, 16)
    assert victim.recomputed_tokens == 16
