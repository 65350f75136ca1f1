"""The search says what a run of every single setting would have said, and chooses by the goals."""

from __future__ import annotations

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
