"""Plans: what is recommended, why, and what is said when it does not fit."""

from __future__ import annotations

from dataclasses import replace
from math import nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotdeck.console.advice.capacity import CapacityError, Memory, ModelFacts, Speed
from slotdeck.console.advice.plan import CurrentSettings, Plan, Question
from slotdeck.console.advice.planner import make_plan
from slotdeck.console.advice.running import kv_dtype_of, memory_of, model_of
from slotdeck.engine.settings import LiveSettings
from slotdeck.engine.telemetry.frame import EngineInfo, HostInfo, PoolInfo
from tests.support.doctor_frames import frame
from tests.support.model_facts import CHAT, EIGHT_B, SMOLLM2

BOX = Memory(16 << 30, False)
SMALL = replace(SMOLLM2, weight_bytes=150_000_000)


def said(plan: Plan) -> dict[str, str]:
    return {verdict.key: verdict.text for verdict in plan.verdicts}


def test_twenty_chat_users_on_a_24_gb_card() -> None:
    plan = make_plan(CHAT)
    assert plan.load.in_flight == pytest.approx(2.667, abs=0.001)
    assert plan.setting("slots") == 4
    assert plan.setting("context") == 8192
    assert plan.capacity.cache_tokens >= 4 * 8192
    assert 1 <= (plan.setting("queue") or 0) <= 16
    assert plan.setting("budget") == 512
    assert "4 slots x 8,192 use 32,768 of" in said(plan)["fits"]
    assert all(one.reason for one in plan.settings)
    assert not plan.assumed


def test_twenty_agents_are_twenty_in_flight_and_too_many_for_the_card() -> None:
    plan = make_plan(replace(CHAT, turn_seconds=0))
    assert plan.load.in_flight == 20
    assert plan.wanted_slots == 20
    assert plan.setting("slots") == 5
    assert "163,840 tokens, but the cache holds" in said(plan)["overcommit"]
    assert "instead of ≈5 (5.03)" in said(plan)["int8_cache"]
    assert "quality" in said(plan)["int8_cache"]
    assert "smaller model" in said(plan)["smaller_model"]
    assert "vLLM" in said(plan)["vllm"]


def test_a_small_box_without_a_gpu_is_not_told_to_take_vllm() -> None:
    plan = make_plan(Question(EIGHT_B, Memory(8 << 30, False), "bf16", users=20, turn_seconds=0))
    assert plan.settings == ()
    assert "The weights alone need 16 GB of 8.59 GB" in said(plan)["smaller_model"]
    assert "vLLM does not" in said(plan)["small_box"]
    assert plan.verdicts[0].level == "critical"


def test_a_conversation_that_does_not_fit_is_named_with_what_would() -> None:
    tight = Memory(16_700_000_000, False)
    plan = make_plan(replace(CHAT, memory=tight, prompt=3000, answer=500))
    assert "Not even one conversation of 8,192 tokens fits" in said(plan)["context_too_large"]
    assert (plan.setting("slots"), plan.setting("context")) == (1, 4608)
    assert "3,584, enough for prompt and answer" in said(plan)["shorter_context"]


def test_a_long_prompt_with_a_short_answer_is_prefill_work() -> None:
    plan = make_plan(Question(SMALL, BOX, "bf16", prompt=6000, answer=200))
    assert said(plan)["prefill_work"].startswith("A 6,000-token prompt with a 200-token answer is mostly prefill")
    assert plan.setting("context") == 6400
    measured = make_plan(replace(plan.question, speed=Speed(prefill=500, decode=100)))
    assert "12 s of reading, 2 s of writing" in said(measured)["prefill_work"]
    assert measured.load.generate_seconds == pytest.approx(14)
    short = make_plan(replace(measured.question, prompt=200, answer=2000))
    assert "more cores only speed up the reading" in said(short)["decode_work"]
    assert "More cores only speed up reading prompts" in said(make_plan(CHAT))["phases"]


def test_prompts_that_keep_the_machine_busy_more_than_once_over() -> None:
    load = Question(SMALL, BOX, "bf16", users=20, turn_seconds=60, prompt=6000, answer=200, speed=Speed(500, 100))
    plan = make_plan(load)
    assert "takes 4 times as long as there is time for" in said(plan)["saturated"]
    assert plan.verdicts[0].key == "saturated"


def test_less_time_than_the_machine_needs_alone_is_said() -> None:
    question = Question(SMALL, BOX, "bf16", prompt=6000, answer=200, speed=Speed(500, 100), generate_seconds=5)
    assert "5 s of work for a turn is less than the 14 s" in said(make_plan(question))["too_quick"]
    assert "too_quick" not in said(make_plan(replace(question, generate_seconds=None)))


def test_the_budget_follows_from_the_measured_speed() -> None:
    question = Question(SMALL, BOX, "bf16", prompt=600, answer=200)
    assert make_plan(question).setting("budget") == 64
    assert make_plan(replace(question, speed=Speed(1500, 130))).setting("budget") == 128
    assert make_plan(replace(question, speed=Speed(20, 3))).setting("budget") == 16
    assert make_plan(replace(question, speed=Speed(1e6, 130))).setting("budget") == 2048


def test_a_few_people_get_a_slot_each_as_far_as_they_fit() -> None:
    plans = [make_plan(replace(CHAT, users=users)) for users in (1, 2, 5)]
    assert [plan.setting("slots") for plan in plans] == [1, 2, 4]
    assert [plan.wanted_slots for plan in plans] == [1, 2, 2]
    assert "1 slot x 8,192" in said(plans[0])["fits"]
    assert "almost free" in plans[1].settings[0].reason
    tight = make_plan(replace(CHAT, users=5, memory=Memory(18_500_000_000, False)))
    assert tight.setting("slots") == 2
    assert "overcommit" not in said(tight)


def test_slots_in_force_stay_if_they_are_about_as_many_as_needed() -> None:
    def advised(now: int) -> int | None:
        return make_plan(replace(CHAT, now=CurrentSettings(slots=now))).setting("slots")

    assert [advised(now) for now in (3, 4, 5, 20)] == [4, 4, 5, 4]
    assert advised(8) == 5  # no more fit


def test_what_was_not_given_is_said_to_be_assumed() -> None:
    assert "no speed was measured" in make_plan(Question(SMALL, BOX, "bf16")).assumed[0]
    assert "answer lengths are unknown" in make_plan(Question(SMALL, BOX, "bf16", speed=Speed(1, 1))).assumed[0]


def test_more_than_the_model_was_trained_for_and_more_than_the_context_holds() -> None:
    plan = make_plan(Question(SMALL, BOX, "bf16", context=16_384, prompt=20_000, answer=100))
    assert {verdict.level for verdict in plan.verdicts[:2]} == {"critical"}
    assert "8,192 tokens that the model was trained for" in said(plan)["trained_context"]
    assert "20,100 tokens, but the context is 16,384" in said(plan)["too_long"]


def test_a_box_that_would_begin_to_swap_is_warned() -> None:
    memory = Memory(16_000_000_000 + 1_300_000_000, False)
    assert "the system swap" in said(make_plan(replace(CHAT, users=1, memory=memory)))["os_swap"]


@pytest.mark.parametrize(
    "change", [{"users": 0}, {"prompt": 0}, {"context": 5}, {"generate_seconds": 0.0}, {"turn_seconds": nan}]
)
def test_numbers_without_sense_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(CapacityError):
        make_plan(replace(CHAT, **change))


QUESTIONS = st.builds(
    Question,
    model=st.just(ModelFacts("m", 30, 3, 64, weight_bytes=1 << 28)),
    memory=st.builds(Memory, st.integers(0, 1 << 38), st.booleans()),
    kv_dtype=st.sampled_from(["fp32", "bf16", "int8"]),
    users=st.integers(1, 300),
    turn_seconds=st.floats(0, 600),
    generate_seconds=st.none() | st.floats(0.1, 600),
    prompt=st.none() | st.integers(1, 1 << 17),
    answer=st.none() | st.integers(1, 1 << 10),
    context=st.none() | st.integers(64, 1 << 20),
    speed=st.none() | st.builds(Speed, st.floats(1, 1e5), st.floats(0.1, 1e4)),
)


@given(QUESTIONS)
def test_no_plan_preempts_and_every_value_is_a_setting(question: Question) -> None:
    plan = make_plan(question)
    if not plan.settings:
        assert plan.verdicts[0].level == "critical"
        return
    values = {one.name: one.value for one in plan.settings}
    LiveSettings(**values)
    assert values["slots"] * values["context"] <= plan.capacity.cache_tokens
    assert values["slots"] * values["context"] <= values["kv_tokens"] <= plan.capacity.cache_tokens
    assert values["slots"] <= question.users
    assert all(one.reason for one in plan.settings)


# ------------------------------------------------------------------ a running engine

ENGINE = EngineInfo(
    model="SmolLM2", weights="int8", kv_dtype="bf16", device="cpu", kernels="native avx512", trained_context=8192,
    weight_bytes=150_000_000, layers=30, kv_heads=3, head_dim=64, parameters=134_515_008,
)  # fmt: skip
POOL = PoolInfo(total=8192, bytes_per_token=23_040, scale_bytes_per_token=0)


def test_a_running_engine_tells_its_model_and_what_its_pool_may_take() -> None:
    now = frame(engine=ENGINE, pool=POOL, host=HostInfo(memory_total=16 << 30, memory_used=6 << 30))
    model, memory = model_of(now), memory_of(now)
    assert model is not None
    assert memory is not None
    assert model.kv_bytes("bf16") == 23_040
    assert (model.weight_bytes, kv_dtype_of(now)) == (150_000_000, "bf16")
    assert memory.usable == (10 << 30) + 8192 * 23_040
    torch = now.model_copy(update={"engine": ENGINE.model_copy(update={"kernels": "torch"})})
    assert memory_of(torch) == replace(memory, total=memory.total + 150_000_000)


def test_settings_in_force_that_can_preempt_are_warned_about() -> None:
    question = Question(SMALL, BOX, "bf16", now=CurrentSettings(slots=8, context=2048, budget=96, kv_tokens=8192))
    plan = make_plan(question)
    assert "8 slots x 2,048 may need 16,384 tokens, but the pool holds 8,192" in said(plan)["now_overcommits"]
    assert (plan.setting("budget"), plan.setting("context"), plan.setting("kv_tokens")) == (96, 2048, 8192)
    calm = replace(question, now=CurrentSettings(slots=4, context=2048, kv_tokens=8192))
    assert "now_overcommits" not in said(make_plan(calm))


def test_a_gpu_gives_its_share_and_other_servers_give_nothing() -> None:
    cuda = frame(engine=ENGINE.model_copy(update={"device": "cuda:0"}), host=HostInfo(gpu_memory_total=24 << 30))
    assert memory_of(cuda) == Memory(24 << 30, True, 0.92)
    bare = frame(engine=EngineInfo(name="vllm"), host=HostInfo())
    assert (model_of(bare), memory_of(bare), kv_dtype_of(bare)) == (None, None, None)
