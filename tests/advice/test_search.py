"""The search says what a run of every single setting would have said, and chooses by the goals."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from slotdeck.console.advice import search as searching
from slotdeck.console.advice.search import Goals, SearchResult, Trial, search
from slotdeck.engine.settings import LiveSettings
from tests.support.simulation import run


def find(goals: Goals | None = None, **changes: Any) -> SearchResult:
    values: dict[str, Any] = {"context": 512, "max_slots": 6, "max_pool": 1 << 20, "budgets": (64,)} | changes
    return search(run, LiveSettings(), goals=goals or Goals(5.0, 0.2), **values)


def test_settings_without_a_run_of_their_own_are_what_a_run_would_give(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "SLOTS", (1, 3, 6))
    monkeypatch.setattr(searching, "QUEUES", (0, 1, 16))
    found = find(modes=("continuous", "static"))
    assert found.simulated < 0.7 * (len(found.tried) + found.refusing)
    for tried in found.tried:
        assert Trial.of(tried.settings, run(tried.settings)) == tried
    known = {_key(tried.settings) for tried in found.tried}
    ruled_out = 0
    for mode, slots, queue, size in product(("continuous", "static"), (1, 3, 6), (0, 1, 16), (512, 1024)):
        for pool in searching.pools(slots, 512, 1 << 20):
            settings = LiveSettings(slots=slots, queue=queue, kv_tokens=pool, context=512, mode=mode)
            if size <= pool and _key(settings.model_copy(update={"context": size})) not in known:
                ruled_out += 1
                assert run(settings).rejected > 0
    assert ruled_out == found.refusing > 0


def _key(settings: LiveSettings) -> tuple[Any, ...]:
    return settings.mode, settings.slots, settings.queue, settings.kv_tokens, settings.context


def test_the_choice_keeps_the_goals_and_is_the_smallest_of_the_best() -> None:
    found = find(budgets=(32, 64, 256))
    choice, other = found.choice, found.runner_up
    assert choice is not None
    assert not choice.misses(found.goals)
    assert choice.score(found.goals) <= min(tried.score(found.goals) for tried in found.kept) * searching.NEAR
    assert other is not None
    assert (other.settings.slots, other.settings.budget) != (choice.settings.slots, choice.settings.budget)


def test_without_a_setting_that_keeps_the_goals_the_nearest_is_named() -> None:
    found = find(Goals(0.001, 0.2))
    assert found.kept == []
    assert found.choice is not None
    assert "TTFT p95" in found.choice.misses(found.goals)
    assert not found.choice.refused


def test_nobody_on_the_frontier_is_beaten_in_everything() -> None:
    found = find(budgets=(32, 256))
    frontier = found.frontier()
    assert found.choice in frontier or found.choice is not None
    for tried in frontier:
        for other in frontier:
            better = [
                (other.ttft_p95 or 0) < (tried.ttft_p95 or 0) - 0.01,
                (other.itl_p95 or 0) < (tried.itl_p95 or 0) - 0.001,
                (other.tokens_per_second or 0) > (tried.tokens_per_second or 0) + 1,
                other.settings.kv_tokens < tried.settings.kv_tokens,
            ]
            assert not all(better)


def test_the_pool_stays_within_memory() -> None:
    found = find(max_pool=1024)
    assert {tried.settings.kv_tokens for tried in found.tried} == {512, 768, 1024}
    assert find(max_pool=256).choice is None


def trial(score: float = 0.5, **changes: Any) -> Trial:
    """A trial that uses ``score`` of the goal of 2 s."""
    settings = LiveSettings(slots=4, context=512, queue=8, budget=64, kv_tokens=2048)
    values: dict[str, Any] = {"preemptions": 0, "refused": 0} | changes
    known = {name: values.pop(name) for name in list(values) if name in LiveSettings.model_fields}
    return Trial(
        settings=settings.model_copy(update=known), ttft_p50=0.1, ttft_p95=2.0 * score, itl_p50=0.01, itl_p95=0.01,
        tokens_per_second=100.0, finished=10, max_waiting=0, max_queued=0, max_admitted=4, pool_bound=False, **values,
    )  # fmt: skip


def test_a_goal_is_kept_up_to_its_limit() -> None:
    goals = Goals(2.0, 0.15)
    assert trial(1.0).misses(goals) == []
    assert trial(1.001).misses(goals) == ["TTFT p95"]
    assert replace(trial(), itl_p95=0.16).misses(goals) == ["ITL p95"]
    assert replace(trial(), itl_p95=None).misses(goals) == []
    assert replace(trial(), ttft_p95=None).misses(goals) == ["TTFT p95"]
    assert trial(preemptions=1, refused=1).misses(goals) == ["preemptions", "refused requests"]
    assert replace(trial(0.5), itl_p95=0.12).score(goals) == pytest.approx(0.8), "the tighter limit counts"


def test_scores_within_a_twentieth_are_equal_and_the_smaller_setting_wins() -> None:
    best, near, far = trial(0.5), trial(0.52, kv_tokens=1024), trial(0.53, kv_tokens=512)
    assert SearchResult(Goals(), [best, near, far]).kept == [near, best, far]
    slots = [trial(0.5, slots=5), trial(0.5, slots=3), trial(0.5, slots=9, kv_tokens=1024)]
    assert [one.settings.slots for one in SearchResult(Goals(), slots).kept] == [9, 3, 5], "the pool comes first"


def test_without_a_kept_goal_refusals_count_more_than_preemptions_and_those_more_than_time() -> None:
    slow, preempting, refusing = trial(9.0), trial(0.5, preemptions=1), trial(0.5, refused=1)
    found = SearchResult(Goals(), [refusing, preempting, slow])
    assert found.kept == []
    assert found.ranked == [slow, preempting, refusing]


def test_the_runner_up_differs_in_slots_budget_or_mode() -> None:
    same = trial(0.51, queue=64, kv_tokens=4096)
    other = trial(0.9, budget=128)
    found = SearchResult(Goals(), [trial(0.5), same, other])
    assert found.runner_up == other
    assert SearchResult(Goals(), [trial(0.5), same]).runner_up is None
    assert SearchResult(Goals()).runner_up is None


def test_pools_are_whole_blocks_from_half_to_all_of_what_the_slots_need() -> None:
    assert searching.pools(4, 500, 1 << 20) == [1008, 2000]
    assert searching.pools(1, 500, 1 << 20) == [512]
    assert searching.pools(4, 500, 1999) == [1008]


def test_slots_are_tried_up_to_the_bound_and_serial_only_one() -> None:
    found = find(max_slots=3, modes=("serial", "continuous"), budgets=(64,))
    tried = {(one.settings.mode, one.settings.slots) for one in found.tried}
    assert tried == {("serial", 1), ("continuous", 1), ("continuous", 2), ("continuous", 3)}


def test_a_setting_is_on_the_frontier_if_it_is_better_in_one_thing() -> None:
    base = trial(0.5)
    better = [
        replace(base, tokens_per_second=200.0, ttft_p95=1.5),
        replace(base, itl_p95=0.005, ttft_p95=1.5),
        trial(0.75, kv_tokens=1024),
    ]
    worse = replace(base, tokens_per_second=50.0, ttft_p95=1.9)
    frontier = SearchResult(Goals(), [base, *better, worse]).frontier()
    assert worse not in frontier
    assert all(one in frontier for one in (base, *better))
    refusing = replace(base, refused=1, ttft_p95=0.1)
    assert SearchResult(Goals(), [base, refusing]).frontier() == [base]
    assert SearchResult(Goals(), [refusing]).frontier() == [refusing]
