"""What would happen if: the same people under one setting and under another."""

from __future__ import annotations

from dataclasses import replace

from slotdeck.console.advice.forecast import (
    BUSY_SECONDS,
    PAUSING_SECONDS,
    People,
    ServiceForecast,
    forecast_service,
    people_of,
)
from slotdeck.console.advice.planner import make_plan
from slotdeck.engine.settings import LiveSettings
from tests.support.calibration import CALIBRATION
from tests.support.model_facts import CHAT

TEN = People(users=10, pause=20, prompt=400, answer=100)
ENOUGH = LiveSettings(slots=8, context=1024, kv_tokens=8192)


def test_the_people_of_a_plan_pause_for_what_a_turn_leaves() -> None:
    assert people_of(make_plan(CHAT)) is None
    people = people_of(make_plan(replace(CHAT, prompt=400, answer=100)))
    assert people == People(users=20, pause=78, prompt=400, answer=100)
    never = people_of(make_plan(replace(CHAT, prompt=400, answer=100, turn_seconds=0)))
    assert never is not None
    assert (never.pause, never.seconds) == (0, BUSY_SECONDS)
    assert TEN.seconds == PAUSING_SECONDS


def test_one_slot_makes_them_wait_and_the_same_seed_gives_the_same() -> None:
    one, many = (forecast_service(TEN, ENOUGH.model_copy(update={"slots": slots}), CALIBRATION) for slots in (1, 8))
    assert one.ttft_p95 is not None
    assert many.ttft_p95 is not None
    assert one.ttft_p95 > 1.5 * many.ttft_p95
    assert forecast_service(TEN, ENOUGH, CALIBRATION) == many
    assert (many.preemptions, many.refused) == (0, 0)
    assert many.finished > 50


def test_a_pool_too_small_preempts_and_a_context_too_small_refuses() -> None:
    busy = TEN.model_copy(update={"pause": 0.0})
    tight = forecast_service(busy, ENOUGH.model_copy(update={"kv_tokens": 1040}), CALIBRATION)
    assert tight.preemptions > 0
    short = forecast_service(busy, ENOUGH.model_copy(update={"context": 400}), CALIBRATION)
    assert short.refused == 10
    assert (short.finished, short.ttft_p95, short.tokens_per_second) == (0, None, None)


def test_answers_end_at_the_context() -> None:
    full = ENOUGH.model_copy(update={"context": 512})
    found = forecast_service(TEN.model_copy(update={"users": 2, "answer": 400}), full, CALIBRATION)
    assert found.refused == 0
    assert ServiceForecast.model_validate_json(found.model_dump_json()).finished > 0
