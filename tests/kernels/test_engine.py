"""The engine on the kernels: the same text alone and in company, cut anyhow, preempted; one's faults stay its own."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from slotdeck.engine.core.block_pool import blocks_for
from slotdeck.engine.core.request import State
from slotdeck.engine.kernels import build
from slotdeck.engine.model.llama.native_decoder import NativeDecoder
from slotdeck.engine.model.load import LoadedModel, load_model
from slotdeck.engine.model.runner import Runner
from slotdeck.engine.settings import LiveSettings
from tests.support.tiny_models import Driver, make_request, random_prompt, save_tiny_llama
from tests.support.transformers_twin import Drive, Twin, random_change

pytestmark = pytest.mark.skipif(build.compiler() is None, reason="no C++ compiler")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = tmp_path_factory.mktemp("tiny")
    save_tiny_llama(folder, vocab_size=199)
    model = load_model(str(folder), weights="int8", device="cpu")
    assert model.weights == "int8"
    assert model.kernels.startswith("native ")
    return model


def solo(model: LoadedModel, prompt: list[int], count: int, kv_dtype: str = "auto", **sampling: Any) -> list[int]:
    driver = Driver(Runner(model, 32, kv_dtype, 2), 32, random.Random(1), 256)
    return driver.generate([make_request("solo", prompt, **sampling)], count)["solo"]


@pytest.mark.parametrize("kv_dtype", ["auto", "fp32", "fp16", "int8"])
def test_the_text_is_the_same_alone_and_in_company(model: LoadedModel, kv_dtype: str) -> None:
    source = random.Random(kv_dtype)
    prompts = [random_prompt(source, source.randint(1, 150), 199) for _ in range(8)]
    sampling: list[dict[str, Any]] = [
        {}, {"temperature": 1.0, "seed": 4}, {}, {"top_k": 1, "temperature": 1.0}, {"presence_penalty": 1.0},
        {"temperature": 0.7, "top_p": 0.8, "seed": 1}, {"top_logprobs": 2}, {},
    ]  # fmt: skip
    wanted = [solo(model, prompt, 12, kv_dtype, **params) for prompt, params in zip(prompts, sampling, strict=True)]
    for budget in (1, 7, 64, 256):
        driver = Driver(Runner(model, 120, kv_dtype, 2), 120, source, budget)
        requests = [make_request(str(i), p, **s) for i, (p, s) in enumerate(zip(prompts, sampling, strict=True))]
        outputs = driver.generate(requests, 12)
        assert not driver.failures
        assert [outputs[str(i)] for i in range(8)] == wanted


@pytest.mark.parametrize("seed", range(4))
def test_the_text_is_the_same_across_modes_prefix_hits_preemptions_and_resizes(model: LoadedModel, seed: int) -> None:
    source = random.Random(seed)
    beginning = random_prompt(source, 40, 199)
    prompts = [[*beginning[: source.choice([0, 20, 40])], *random_prompt(source, 30, 199)] for _ in range(10)]
    counts = [source.randint(10, 60) for _ in prompts]
    largest = max(blocks_for(len(prompt) + count) for prompt, count in zip(prompts, counts, strict=True))
    settings = LiveSettings(slots=4, context=largest * 16, queue=64, budget=32, preemption="swap")
    drive = Drive(Twin(model, None), settings, largest + 3, seed=seed)
    requests = drive.serve(prompts, counts, random_change)
    for request, prompt, count in zip(requests, prompts, counts, strict=True):
        assert request.state is State.FINISHED
        assert request.output_token_ids == solo(model, prompt, count, "fp32")


def test_a_request_that_is_not_finite_fails_alone_and_leaves_nothing(model: LoadedModel) -> None:
    decoder = model.decoder
    assert isinstance(decoder, NativeDecoder)
    source = random.Random(3)
    prompts = [random_prompt(source, n, 198) for n in (20, 40, 60)]
    wanted = [solo(model, prompt, 10) for prompt in prompts]
    embedding = decoder._model.embedding.copy()
    kept = decoder._model.embedding
    embedding[198] = 0x7FC0
    try:
        object.__setattr__(decoder._model, "embedding", embedding)
        decoder._model._structures.clear()
        driver = Driver(Runner(model, 24), 24, source, 16)
        for _ in range(3):
            good = [make_request(f"good {i}", prompt) for i, prompt in enumerate(prompts)]
            bad = [make_request(f"bad {i}", [*prompts[0][: 7 * i], 198, *prompts[0]]) for i in range(3)]
            outputs = driver.generate([bad[0], good[0], bad[1], good[1], good[2], bad[2]], 10)
            assert set(driver.failures) == {"bad 0", "bad 1", "bad 2"}
            assert [outputs[request.id] for request in good] == wanted
            driver.failures.clear()
        for tensor in (*driver.runner._store.keys, *driver.runner._store.values):
            assert torch.isfinite(tensor).all()
    finally:
        object.__setattr__(decoder._model, "embedding", kept)
        decoder._model._structures.clear()


def test_threads_are_what_was_asked_and_torch_keeps_one(model: LoadedModel) -> None:
    prompt = random_prompt(random.Random(8), 50, 199)
    texts = []
    for threads in (1, 2, 3):
        runner = Runner(model, 16, "auto", threads)
        assert runner.threads == threads
        assert torch.get_num_threads() == 1
        texts.append(Driver(runner, 16, random.Random(0)).generate([make_request("a", prompt)], 10)["a"])
    assert texts[0] == texts[1] == texts[2]


def test_the_pool_may_grow_and_shrink(model: LoadedModel) -> None:
    prompt = random_prompt(random.Random(8), 50, 199)
    runner = Runner(model, 8, "int8")
    first = Driver(runner, 8, random.Random(0)).generate([make_request("a", prompt)], 10)
    runner.resize(40)
    assert Driver(runner, 40, random.Random(1)).generate([make_request("a", prompt)], 10) == first
    runner.resize(6)
    assert Driver(runner, 6, random.Random(2)).generate([make_request("a", prompt)], 10) == first


@pytest.mark.model
def test_int8_answers_as_well_as_fp32(embedded_fp32: LoadedModel) -> None:
    from tests.support.prose import loss, predictions, prose

    token_ids = prose(embedded_fp32)
    model = load_model("smollm2", weights="int8", device="cpu")
    exact = loss(predictions(embedded_fp32, token_ids, "fp32"), token_ids)
    assert abs(loss(predictions(model, token_ids, "bf16"), token_ids) - exact) < 0.03


def test_the_text_is_the_same_when_the_kernels_draw_and_when_the_sampler_does(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = random.Random(6)
    ways: list[dict[str, Any]] = [
        {"temperature": 1.0}, {"temperature": 0.7, "top_p": 0.9}, {"temperature": 1.3, "top_k": 20},
        {"temperature": 1.0, "min_p": 0.1}, {"temperature": 0.9, "top_k": 50, "top_p": 0.8, "presence_penalty": 0.5},
        {}, {"temperature": 1.0, "frequency_penalty": 1.5}, {"temperature": 1.0, "repetition_penalty": 3.0},
        {"logit_bias": ((7, 4.0), (9, 4.5))}, {"top_k": 1, "temperature": 1.0},
        {"temperature": 1.0, "min_tokens": 30, "stop_token_ids": frozenset(range(90))},
        {"min_tokens": 30, "stop_token_ids": frozenset(range(90))}, {"temperature": 1.0, "top_logprobs": 3},
    ]  # fmt: skip
    prompts = [random_prompt(source, source.randint(1, 60), 199) for _ in ways]

    def texts() -> dict[str, list[int]]:
        driver = Driver(Runner(model, 120, "auto", 2), 120, random.Random(1), 64)
        requests = [make_request(str(i), prompts[i], seed=i, **way) for i, way in enumerate(ways)]
        outputs = driver.generate(requests, 40)
        assert not driver.failures
        return outputs

    drawn = texts()
    monkeypatch.setattr(NativeDecoder, "samples", False)
    assert texts() == drawn
    for way in (10, 11):
        assert not set(drawn[str(way)][:30]) & set(range(90))
