"""The planner's bounds, one by one: slots, queue, budget, pool, context, and from where on each verdict is said."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from slotdeck.console.advice.capacity import CONTEXT_STEP, Capacity, CapacityError, Load, Memory, ModelFacts, Speed
from slotdeck.console.advice.plan import CurrentSettings, Plan, Question, slots_text
from slotdeck.console.advice.plan_report import plan_json, plan_text
from slotdeck.console.advice.planner import make_plan
from slotdeck.engine.settings import SETTINGS

MODEL = ModelFacts("tiny", layers=10, kv_heads=2, head_dim=50, weight_bytes=1_000_000_000, trained_context=8192)
"""4,000 bytes for a token of bf16: 10 GB beside the weights are 2.5 million tokens."""
WIDE = Memory(11_000_000_000, False)
BASE = Question(MODEL, WIDE, "bf16", users=8, turn_seconds=60.0, generate_seconds=12.0, prompt=900, answer=100)


def plan(**changes: Any) -> Plan:
    return make_plan(replace(BASE, **changes))


def reason(made: Plan, name: str) -> str:
    return next(one.reason for one in made.settings if one.name == name)


def keys(made: Plan) -> list[str]:
    return [verdict.key for verdict in made.verdicts]


@pytest.mark.parametrize(
    ("users", "turn", "wanted", "slots"),
    [(1, 60.0, 1, 1), (2, 60.0, 2, 2), (8, 60.0, 2, 4), (16, 60.0, 4, 4), (17, 60.0, 5, 5), (8, 12.0, 8, 8),
     (8, 0.0, 8, 8)],
)  # fmt: skip
def test_slots_are_those_in_flight_and_a_quarter_more(users: int, turn: float, wanted: int, slots: int) -> None:
    made = plan(users=users, turn_seconds=turn)
    assert made.wanted_slots == wanted
    assert made.setting("slots") == slots


def test_the_reason_for_the_slots_says_where_they_come_from() -> None:
    assert reason(plan(users=1), "slots") == "there is one user"
    assert reason(plan(turn_seconds=0.0), "slots") == "users never pause: all 8 requests are in flight"
    assert reason(plan(), "slots") == "1.6 requests in flight; further streams are almost free"
    assert reason(plan(users=17), "slots") == "3.4 requests in flight on average, plus a quarter"
    assert reason(plan(now=CurrentSettings(slots=4)), "slots") == "unchanged: 1.6 requests in flight fit"
    tight = plan(memory=Memory(1_000_000_000 + 3 * 1024 * 4000, False), users=17)
    assert tight.setting("slots") == 3
    assert reason(tight, "slots") == "3.4 requests in flight, but the cache holds only 3 such contexts"


@pytest.mark.parametrize(("now", "slots"), [(2, 2), (4, 4), (5, 4), (1, 4)])
def test_slots_in_force_stay_while_they_are_enough_and_not_far_too_many(now: int, slots: int) -> None:
    assert plan(now=CurrentSettings(slots=now)).setting("slots") == slots


@pytest.mark.parametrize(("now", "slots"), [(10, 10), (11, 5)])
def test_twice_the_wanted_slots_are_kept(now: int, slots: int) -> None:
    assert plan(users=17, now=CurrentSettings(slots=now)).setting("slots") == slots


@pytest.mark.parametrize(
    ("users", "work", "queue", "text"),
    [(8, 12.0, 4, "no more users can be waiting"), (60, 12.0, 20, "would only make people wait longer"),
     (8, 240.0, 1, "would only make people wait longer"), (1, 12.0, 1, "no more users can be waiting")],
)  # fmt: skip
def test_a_queue_is_as_long_as_people_wait_and_as_there_are_people(
    users: int, work: float, queue: int, text: str
) -> None:
    made = plan(users=users, generate_seconds=work, turn_seconds=10 * work)
    assert made.setting("queue") == queue
    assert text in reason(made, "queue")


@pytest.mark.parametrize(
    ("prefill", "budget"), [(100, 16), (319, 16), (320, 32), (639, 32), (640, 64), (20_480, 2048), (90_000, 2048)]
)
def test_a_budget_adds_a_tenth_of_a_second_at_most(prefill: float, budget: int) -> None:
    made = plan(speed=Speed(prefill, 50.0))
    assert made.setting("budget") == budget
    assert f"about {budget / prefill * 1000:.2g} ms" in reason(made, "budget")


def test_without_a_speed_the_budget_is_the_one_in_force_or_the_default() -> None:
    assert plan(now=CurrentSettings(budget=96)).setting("budget") == 96
    assert plan().setting("budget") == 64
    assert plan(memory=Memory(20_000_000_000, True)).setting("budget") == 512


def test_a_pool_is_what_the_slots_need_unless_more_is_there_already() -> None:
    assert plan().setting("kv_tokens") == 4 * 1024
    assert plan(now=CurrentSettings(kv_tokens=4096)).setting("kv_tokens") == 4096
    assert plan(now=CurrentSettings(kv_tokens=5000)).setting("kv_tokens") == 5000
    assert plan(now=CurrentSettings(kv_tokens=4095)).setting("kv_tokens") == 4096
    odd = plan(context=1001)
    assert odd.setting("kv_tokens") == 4016, "whole blocks of 16"
    gpu = plan(memory=Memory(1_000_000_000 + 64_000_000, True))
    assert gpu.setting("kv_tokens") == gpu.capacity.cache_tokens == 16_000


def test_a_context_is_given_needed_in_force_or_the_default() -> None:
    assert plan(context=3000).setting("context") == 3000
    assert plan().setting("context") == 1024
    assert plan(prompt=1024, answer=1).setting("context") == 1024 + CONTEXT_STEP
    assert plan(prompt=8100, answer=92).setting("context") == 8192
    unknown = {"prompt": None, "answer": None}
    assert plan(**unknown, now=CurrentSettings(context=4000)).setting("context") == 4000
    assert plan(**unknown).setting("context") == 2048
    assert plan(**unknown, model=replace(MODEL, trained_context=2047)).setting("context") == 2047
    near = replace(MODEL, trained_context=1100)
    assert plan(model=near, prompt=1000, answer=100).setting("context") == 1100


def test_a_context_outside_the_range_of_the_setting_is_refused() -> None:
    low, high = int(SETTINGS["context"].minimum or 0), int(SETTINGS["context"].maximum or 0)
    for context in (low - 1, high + 1):
        with pytest.raises(CapacityError, match="context must be between"):
            plan(context=context)
    assert plan(context=low).capacity.context == low


def test_a_context_that_does_not_fit_is_cut_to_whole_steps() -> None:
    made = plan(memory=Memory(1_000_000_000 + 700 * 4000, False))
    assert made.setting("context") == 512
    assert made.setting("slots") == 1
    assert plan(memory=Memory(1_000_000_000 + 255 * 4000, False)).settings == ()
    assert keys(plan(memory=Memory(1_000_000_000, False)))[0] == "smaller_model"


@pytest.mark.parametrize(("flight", "told"), [(4.0, False), (4.1, True)])
def test_above_four_in_flight_another_server_is_named(flight: float, told: bool) -> None:
    many = {"users": 10, "generate_seconds": flight, "turn_seconds": 10.0}
    assert ("vllm" in keys(plan(**many))) is told
    assert ("small_box" in keys(plan(**many, memory=Memory(8 << 30, False)))) is told
    assert ("small_box" in keys(plan(**many, memory=Memory((8 << 30) + 1, False)))) is False


def test_a_tight_memory_is_warned_about_above_nine_tenths() -> None:
    taken = 1_000_000_000 + 4096 * 4000
    assert "os_swap" not in keys(plan(memory=Memory(int(taken / 0.9) + 2, False)))
    assert "os_swap" in keys(plan(memory=Memory(int(taken / 0.9) - 2, False)))


@pytest.mark.parametrize(("prompt", "answer", "key"), [(1000, 100, "prefill_work"), (999, 100, "phases")])
def test_without_a_speed_ten_prompt_tokens_for_each_answer_token_are_prefill(
    prompt: int, answer: int, key: str
) -> None:
    assert key in keys(plan(prompt=prompt, answer=answer, context=2048))


def test_with_a_speed_the_longer_half_is_named_and_too_much_work_too() -> None:
    assert "prefill_work" in keys(plan(speed=Speed(90, 10)))
    assert "decode_work" in keys(plan(speed=Speed(91, 10)))
    assert "too_quick" in keys(plan(speed=Speed(100, 10), generate_seconds=17.0))
    assert "too_quick" not in keys(plan(speed=Speed(100, 10), generate_seconds=17.2))
    assert "saturated" not in keys(plan(speed=Speed(120, 100)))
    assert "saturated" in keys(plan(speed=Speed(119, 100)))


def test_seconds_of_work_come_from_the_speed_and_are_else_assumed() -> None:
    made = plan(generate_seconds=None, speed=Speed(90, 10))
    assert made.load.generate_seconds == 20.0
    assert made.assumed == ()
    assert plan(generate_seconds=None).load.generate_seconds == 12.0
    assert "`slotdeck bench --calibrate`" in plan(generate_seconds=None).assumed[0]


def test_settings_that_may_need_more_than_the_pool_are_told() -> None:
    assert CurrentSettings(4, 1000, None, 4000).overcommitted is None
    assert CurrentSettings(4, 1000, None, 3999).overcommitted == (
        "4 slots x 1,000 may need 4,000 tokens, but the pool holds 3,999"
    )
    assert CurrentSettings(4, 1000).overcommitted is None
    assert (slots_text(1), slots_text(2)) == ("1 slot", "2 slots")


@pytest.mark.parametrize("share", [0.0, 1.01, -1.0])
def test_a_share_of_memory_is_above_0_and_at_most_1(share: float) -> None:
    with pytest.raises(CapacityError):
        Memory(1, True, share)
    assert Memory(1000, True, 1.0).usable == 1000


def test_bounds_of_loads_speeds_and_models() -> None:
    for wrong in ((0, 1.0, 1.0), (1, 0.0, 1.0), (1, 1.0, -0.1), (1, float("inf"), 1.0)):
        with pytest.raises(CapacityError):
            Load(*wrong)
    assert Load(1, 0.1, 0.0).in_flight == 1.0
    for slow in ((0.0, 1.0), (1.0, 0.0), (float("inf"), 1.0)):
        with pytest.raises(CapacityError):
            Speed(*slow)
    for name in ("layers", "kv_heads", "head_dim"):
        with pytest.raises(CapacityError, match=name):
            replace(MODEL, **{name: 0})
    for name in ("prompt", "answer"):
        with pytest.raises(CapacityError, match=f"{name} must be at least 1"):
            plan(**{name: 0})
    assert replace(MODEL, name="a\x1b[2J" + "x" * 200).name == "a?[2J" + "x" * 95


def test_capacity_divides_what_the_weights_leave() -> None:
    capacity = Capacity(MODEL, WIDE, "bf16", 1000)
    assert capacity.cache_bytes == 10_000_000_000
    assert capacity.cache_tokens == 2_500_000
    assert capacity.conversations == 2500.0
    assert capacity.conversation_bytes == 4_000_000
    assert capacity.with_kv_dtype("int8").model.token_bytes("int8") == 2000 + 160


def test_a_plan_is_printed_in_80_columns_and_told_whole_in_json() -> None:
    made = plan(speed=Speed(90, 10))
    lines = plan_text(made)
    assert all(len(line) <= 80 for line in lines)
    text = "\n".join(lines)
    assert "  one token         4,000 bytes as bf16" in text
    assert "  in flight         1.6 of 8 users: 12 s of work per turn, one turn every 60 s" in text
    assert "  one stream alone  reads 90 tokens/s, writes 10" in text
    document = plan_json(made)
    assert document["kv"] == {"dtype": "bf16", "bytes_per_token": 4000, "scale_bytes_per_token": 0}
    assert document["load"]["in_flight"] == 1.6
    assert document["load"]["slots_wanted"] == 2
    assert document["capacity"]["conversations"] == made.capacity.conversations
    assert [row["name"] for row in document["settings"]] == ["slots", "context", "queue", "budget", "kv_tokens"]
    int8 = "\n".join(plan_text(plan(kv_dtype="int8")))
    assert "2,000 bytes as int8 + 160 of scales" in int8
