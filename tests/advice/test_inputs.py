"""What advice is made from: frames of a running engine, recorded requests, and scripts of traffic."""

from __future__ import annotations

from itertools import islice

import pytest

from slotdeck.console.advice import simulator as simulating
from slotdeck.console.advice.capacity import ModelFacts
from slotdeck.console.advice.forecast import People, ServiceForecast, forecast_service
from slotdeck.console.advice.model_file import facts_from_config
from slotdeck.console.advice.plan import CurrentSettings
from slotdeck.console.advice.running import current_settings_of, kv_dtype_of, memory_of, model_of, settings_of
from slotdeck.console.advice.simulation_result import SimulationResult
from slotdeck.console.advice.traffic import SHAPES, Shape, Traffic, describe, script
from slotdeck.engine.settings import LiveSettings
from slotdeck.engine.telemetry.frame import EngineInfo, HostInfo, LimitInfo, PoolInfo
from tests.support.calibration import CALIBRATION
from tests.support.doctor_frames import frame

CONFIG = {
    "num_attention_heads": 8, "hidden_size": 64, "num_hidden_layers": 4, "num_key_value_heads": 2,
    "intermediate_size": 128, "vocab_size": 1000, "max_position_embeddings": 4096,
}  # fmt: skip


def test_settings_of_a_frame_are_those_in_force_with_defaults_for_the_rest() -> None:
    limits = LimitInfo(slots=3, context=999, queue=7, budget=48, itl_target=60, mode="static")
    settings = settings_of(frame(limits=limits))
    assert (settings.slots, settings.context, settings.queue, settings.budget) == (3, 999, 7, 48)
    assert settings.mode == "static"
    assert settings.itl_target == 0, "the budget that it leads to is not known"
    assert settings.kv_tokens == LiveSettings().kv_tokens
    pool = PoolInfo(total=4321)
    assert current_settings_of(frame(limits=limits, pool=pool)) == CurrentSettings(3, 999, 48, 4321)


def test_a_model_is_known_if_its_sizes_are() -> None:
    engine = EngineInfo(layers=4, kv_heads=2, head_dim=8, model="m", weights="int8", weight_bytes=10, kv_dtype="int8")
    model = model_of(frame(engine=engine))
    assert model == ModelFacts("m", 4, 2, 8, weight_bytes=10, weights="int8")
    for name in ("layers", "kv_heads", "head_dim"):
        assert model_of(frame(engine=engine.model_copy(update={name: None}))) is None
    assert kv_dtype_of(frame(engine=engine)) == "int8"
    assert kv_dtype_of(frame(engine=engine.model_copy(update={"kv_dtype": "fp8"}))) is None


@pytest.mark.parametrize(("kernels", "held"), [("native avx2", 1000 * 12), ("torch", 1000 * 12 + 5000), (None, 17_000)])
def test_memory_is_what_is_free_and_what_the_engine_holds(kernels: str | None, held: int) -> None:
    engine = EngineInfo(device="cpu", kernels=kernels, weight_bytes=5000)
    pool = PoolInfo(total=1000, bytes_per_token=10, scale_bytes_per_token=2)
    host = HostInfo(memory_total=100_000, memory_used=60_000, gpu_memory_total=7)
    memory = memory_of(frame(engine=engine, pool=pool, host=host))
    assert memory is not None
    assert (memory.total, memory.gpu) == (40_000 + held, False)
    gpu = memory_of(frame(engine=EngineInfo(device="cuda:1"), pool=pool, host=host), 0.5)
    assert gpu is not None
    assert (gpu.total, gpu.gpu, gpu.utilisation) == (7, True, 0.5)
    assert memory_of(frame(engine=EngineInfo(device="cuda"), host=HostInfo(memory_total=9, memory_used=1))) is None
    assert memory_of(frame(engine=engine, host=HostInfo(memory_total=9))) is None


def test_a_config_gives_layers_heads_and_the_number_of_weights() -> None:
    facts = facts_from_config(CONFIG, "m")
    assert (facts.layers, facts.kv_heads, facts.head_dim, facts.trained_context) == (4, 2, 8, 4096)
    layer = 64 * 2 * (8 + 2) * 8 + 3 * 64 * 128 + 2 * 64
    assert facts.parameters == 4 * layer + 2 * 64_000 + 64
    assert facts.weight_bytes == 2 * facts.parameters
    tied = facts_from_config(CONFIG | {"tie_word_embeddings": True}, "m")
    assert tied.parameters == facts.parameters - 64_000
    assert facts_from_config(CONFIG | {"max_position_embeddings": 0}, "m").trained_context is None


def test_the_usual_traffic_of_each_kind() -> None:
    """People read for 20 to 60 s, agents never pause, documents are long. The help of the command says the same."""
    assert {
        "chat": Shape((20, 60), (0, 40), (40, 120), (20, 80), (60, 250), (2, 8)),
        "agent": Shape((0, 0), (0, 2), (150, 400), (40, 200), (40, 160), (2, 8)),
        "documents": Shape((0, 0), (0, 2), (700, 1500), (700, 1500), (30, 90), (1, 1)),
    } == SHAPES
    assert "20 to 60 s between turns" in describe(Traffic("chat", 3, 60.0, 1024))
    assert "messages of 700–1500 tokens, later ones of 700–1500, answers of 30–90" in describe(
        Traffic("documents", 3, 60.0, 4096)
    )


def test_a_script_fills_its_context_to_the_last_token_and_then_begins_anew() -> None:
    shape = Shape((1, 1), (5, 5), (100, 100), (10, 10), (40, 40), (50, 50))
    turns = list(islice(script(shape, 290, "s"), 6))
    assert [turn.think for turn in turns] == [5, 1, 1, 1, 1, 1]
    assert [turn.fresh for turn in turns] == [True, False, False, False, True, False], "140, 190, 240, 290, anew"
    assert [turn.message for turn in turns] == [100, 10, 10, 10, 100, 10]
    two = Shape((1, 1), (5, 5), (100, 100), (10, 10), (40, 40), (2, 2))
    assert [turn.fresh for turn in islice(script(two, 1000, "s"), 5)] == [True, False, True, False, True]
    assert Traffic("agent", 1, 1.0, 10_000, shape=two).max_tokens == 100 + 10 + 40 + 40
    assert Traffic("agent", 1, 1.0, 150, shape=two).max_tokens == 150
    long = Shape((1, 1), (0, 0), (900, 900), (10, 10), (500, 500), (1, 1))
    [turn] = islice(script(long, 400, "s"), 1)
    assert (turn.message, turn.answer) == (300, 100), "an answer takes a quarter of the context at most"


def test_forecasts_count_refusals_of_both_kinds_and_vary_answers_by_half(monkeypatch: pytest.MonkeyPatch) -> None:
    result = SimulationResult(rejected=3, too_long=4, preemptions=5, finished=6, generated=60, seconds=12.0)
    forecast = ServiceForecast.of(result)
    assert (forecast.refused, forecast.preemptions, forecast.finished) == (7, 5, 6)
    assert forecast.tokens_per_second == 5.0
    answers: list[int] = []
    finished = simulating.Simulator.finished
    monkeypatch.setattr(
        simulating.Simulator, "finished",
        lambda self, request: (answers.append(request.num_output_tokens), finished(self, request))[1],
    )  # fmt: skip
    people = People(users=2, pause=0.0, prompt=50, answer=20)
    forecast_service(people, LiveSettings(slots=2, context=256, kv_tokens=1024), CALIBRATION)
    assert min(answers) >= 10
    assert max(answers) <= 30
    assert len(set(answers)) > 10


def test_the_answer_ends_at_the_context() -> None:
    people = People(users=1, pause=0.0, prompt=255, answer=100)
    settings = LiveSettings(slots=1, context=256, kv_tokens=1024)
    forecast = forecast_service(people, settings, CALIBRATION)
    assert forecast.finished > 0
    assert forecast.itl_p95 is None, "answers of one token have no gap"
    assert forecast_service(people.model_copy(update={"prompt": 256}), settings, CALIBRATION).refused == 1
