"""The prefill budget that keeps an ITL target."""

from __future__ import annotations

import pytest

from slotdeck.engine.core.budget import MIN_BUDGET, StepCost
from tests.support.core_engine import Engine


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
    forecast = measured().forecast_itl(0.060, 4, 1000)
    assert forecast is not None
    assert forecast.outlook == "kept"
    assert forecast.budget == pytest.approx((0.060 - 0.025) / 0.0005, abs=3)
    assert 0.058 < forecast.seconds <= 0.060
    noisy = measured(noise=0.001).forecast_itl(0.060, 4, 1000)
    assert noisy is not None
    assert noisy.budget < forecast.budget, "a promise about a tail leaves a margin"


def test_an_unreachable_target_gives_the_floor_and_says_so() -> None:
    forecast = measured().forecast_itl(0.020, 4, 1000)
    assert forecast is not None
    assert (forecast.budget, forecast.outlook) == (MIN_BUDGET, "unreachable")
    assert forecast.seconds == pytest.approx(0.025, rel=0.05), "what decoding alone takes"


def test_a_target_that_only_the_least_prefill_breaks_is_not_called_kept() -> None:
    """Decoding alone takes 25 ms, with the floor 33 ms: 30 ms hold only while no prompt is computed."""
    forecast = measured().forecast_itl(0.030, 4, 1000)
    assert forecast is not None
    assert (forecast.budget, forecast.outlook) == (MIN_BUDGET, "floor")
    assert forecast.seconds == pytest.approx(0.033, rel=0.05), "what such a step takes"


def test_restless_prefill_does_not_make_calm_decoding_unreachable() -> None:
    cost = StepCost()
    for step in range(256):
        prefill = 32 * (step % 2)
        cost.observe(4, prefill, 1000, 0.025 + 0.0005 * prefill + (0.020 * (step % 20 < 4) if prefill else 0.0))
    forecast = cost.forecast_itl(0.032, 4, 1000)
    assert forecast is not None
    assert forecast.outlook == "floor"
    assert forecast.seconds > 0.032


def test_a_prefill_that_reads_much_leaves_less_room() -> None:
    near, far = (measured().forecast_itl(0.060, 4, 1000, prefilled=prefilled) for prefilled in (0, 10_000))
    assert near is not None
    assert far is not None
    assert near.budget - far.budget == pytest.approx(0.010 / 0.0005, abs=2)


def test_without_measurements_nothing_is_promised() -> None:
    assert StepCost().forecast_itl(0.1, 1, 0) is None


def test_mere_decoding_is_enough_to_call_a_target_unreachable_but_not_to_choose_a_budget() -> None:
    cost = StepCost()
    for _ in range(20):
        cost.observe(4, 0, 1000, 0.025)
    forecast = cost.forecast_itl(0.020, 4, 1000)
    assert forecast is not None
    assert forecast.outlook == "unreachable"
    assert cost.forecast_itl(0.060, 4, 1000) is None


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
    assert engine.step().num_prefill_tokens == MIN_BUDGET
    assert engine.scheduler.itl_forecast is not None
    assert engine.scheduler.itl_forecast.outlook == "unreachable"
    engine.change(itl_target=25)
    assert engine.step().num_prefill_tokens == MIN_BUDGET
    assert engine.scheduler.itl_forecast.outlook == "floor"
    engine.change(itl_target=0)
    assert (engine.scheduler.budget_in_force, engine.scheduler.itl_forecast) == (64, None)  # also before the next step
    assert engine.step().num_prefill_tokens == 64
    assert engine.scheduler.itl_forecast is None
