"""Faults of one request stay with that request; the runner says what it uses."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from slotdeck.engine.core.step import ScheduledRequest, SchedulerOutput
from slotdeck.engine.model import runner as runner_module
from slotdeck.engine.model.attention_backend import Span, sort_key
from slotdeck.engine.model.errors import ModelError
from slotdeck.engine.model.kv_store import KVStore
from slotdeck.engine.model.load import LoadedModel, load_model
from slotdeck.engine.model.runner import Runner
from slotdeck.engine.model.torch_attention import GROUP_COST, TILE, build_groups
from slotdeck.engine.settings import BLOCK_SIZE
from tests.support.tiny_models import Driver, make_request, random_prompt, save_tiny_llama

POISON = 299


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = tmp_path_factory.mktemp("tiny")
    save_tiny_llama(folder)
    return load_model(str(folder), weights="fp32", device="cpu")


def solo(model: LoadedModel, prompt: list[int], count: int = 12, **sampling: Any) -> list[int]:
    driver = Driver(Runner(model, 16), 16, random.Random(1))
    return driver.generate([make_request("solo", prompt, **sampling)], count)["solo"]


def test_a_row_that_is_not_finite_fails_alone_and_leaves_nothing(model: LoadedModel) -> None:
    source = random.Random(0)
    prompts = [random_prompt(source, n, POISON) for n in (20, 40, 60)]
    wanted = [solo(model, prompt) for prompt in prompts]
    assert not any(POISON in output for output in wanted)
    embedding = model.decoder.weights.embedding
    kept = embedding[POISON].clone()
    with torch.inference_mode():
        embedding[POISON] = float("nan")
    try:
        driver = Driver(Runner(model, 20), 20, source, 16)
        for _ in range(4):  # blocks of the failed ones are used again by the others
            good = [make_request(f"good {i}", prompt) for i, prompt in enumerate(prompts)]
            bad = [make_request(f"bad {i}", [*prompts[0][: 7 * i], POISON, *prompts[0]]) for i in range(3)]
            outputs = driver.generate([bad[0], good[0], bad[1], good[1], good[2], bad[2]], 12)
            assert set(driver.failures) == {"bad 0", "bad 1", "bad 2"}
            assert "not finite" in driver.failures["bad 1"]
            assert [outputs[request.id] for request in good] == wanted
            driver.failures.clear()
        for tensor in (*driver.runner._store.keys, *driver.runner._store.values):
            assert torch.isfinite(tensor).all()
    finally:
        with torch.inference_mode():
            embedding[POISON] = kept


@pytest.mark.parametrize("wrong", [-1, 300, 1 << 40])
def test_a_token_outside_the_vocabulary_fails_alone(model: LoadedModel, wrong: int) -> None:
    prompt = random_prompt(random.Random(4), 20)
    driver = Driver(Runner(model, 16), 16, random.Random(0))
    outputs = driver.generate([make_request("bad", [5, wrong]), make_request("good", prompt)], 6)
    assert "outside the vocabulary" in driver.failures["bad"]
    assert outputs["good"] == solo(model, prompt, 6)


def test_only_a_position_beyond_the_trained_context_fails(model: LoadedModel) -> None:
    limit = model.config.max_positions
    runner = Runner(model, 40)
    request = make_request("a", random_prompt(random.Random(0), limit + 1))
    request.block_ids = list(range(40))
    last = runner.run(SchedulerOutput((ScheduledRequest(request, 0, limit, True),), 0))
    assert set(last.tokens) == {"a"}
    assert not last.failures
    beyond = runner.run(SchedulerOutput((ScheduledRequest(request, limit, 1, True),), 1))
    assert not beyond.tokens
    assert f"beyond the {limit}" in beyond.failures["a"]


def test_a_step_that_breaks_leaves_no_half_written_values(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = Runner(model, 8)
    request = make_request("a", random_prompt(random.Random(0), 20))
    request.block_ids = [3, 5]
    plan = SchedulerOutput(rows=(ScheduledRequest(request, 0, 20, True),), num_decodes=0)

    def broken(*_: Any) -> None:
        raise RuntimeError("no")

    with monkeypatch.context() as patch:
        patch.setattr(model.decoder._attention, "attend", broken)
        with pytest.raises(RuntimeError):
            runner.run(plan)
    assert not any(tensor.any() for tensor in (*runner._store.keys, *runner._store.values))
    assert runner.run(plan).tokens["a"] == solo(model, request.token_ids, 1)[0]


def test_a_plan_that_does_not_fit_the_pool_is_an_error(model: LoadedModel) -> None:
    runner = Runner(model, 4)
    request = make_request("a", [1] * 20)
    for blocks in ([0], [0, 4], [0, -1]):
        request.block_ids = blocks
        with pytest.raises(ValueError, match=r"blocks|block ids"):
            runner.run(SchedulerOutput(rows=(ScheduledRequest(request, 0, 20, True),), num_decodes=0))


def test_the_same_seed_gives_the_same_text_whatever_the_batch(model: LoadedModel) -> None:
    source = random.Random(9)
    prompts = [random_prompt(source, n) for n in (5, 33, 80, 12)]
    params = [
        {"temperature": 1.0, "seed": 1},
        {"temperature": 0.8, "top_p": 0.7, "seed": 2},
        {"temperature": 1.3, "top_k": 20, "seed": 3},
        {"temperature": 1.0, "seed": 1},
    ]
    wanted = [solo(model, p, **s) for p, s in zip(prompts, params, strict=True)]
    for budget in (3, 64):
        driver = Driver(Runner(model, 32), 32, source, budget)
        requests = [make_request(str(i), p, **s) for i, (p, s) in enumerate(zip(prompts, params, strict=True))]
        outputs = driver.generate(requests, 12)
        assert [outputs[str(i)] for i in range(4)] == wanted
    assert solo(model, prompts[0], temperature=1.0, seed=4) != wanted[0]


def test_the_pool_is_said_and_bounded(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = Runner(model, 10, kv_dtype="bf16", threads=1)
    assert (runner.threads, torch.get_num_threads(), runner.kv_dtype, str(runner.device)) == (1, 1, "bf16", "cpu")
    assert runner.kv_bytes == 160 * model.config.kv_bytes_per_token("bf16")
    assert Runner(model, 10).kv_dtype == "fp32"
    with pytest.raises(ModelError, match="fp8"):
        Runner(model, 10, kv_dtype="fp8")
    monkeypatch.setattr(runner_module, "available_memory", lambda device: 100 * model.config.kv_bytes_per_token("fp32"))
    with pytest.raises(ModelError, match=r"At most 96 tokens fit: lower --kv-tokens"):  # MOD-07
        Runner(model, 10)


def test_a_long_sequence_does_not_pad_many_short_ones(model: LoadedModel) -> None:
    store = KVStore(model.config, 256, torch.float32, model.device)
    blocks = list(range(200))
    lengths = [2000] + [100 + 3 * i for i in range(19)]
    spans = sorted((Span(length - 1, 1, blocks) for length in lengths), key=sort_key)
    groups = build_groups([*spans, Span(0, 300, blocks)], store)
    gathered = sum(len(group.block_rows) for group in groups[:-3]) // store.num_kv_heads
    needed = sum(-(-length // 16) for length in lengths)
    assert gathered <= needed + 2 * GROUP_COST
    assert len(groups) <= 3 + 3
    assert [(group.first, group.last) for group in groups[-3:]] == [(20, 148), (148, 276), (276, 320)]


def test_blocks_that_a_window_left_behind_are_not_read(model: LoadedModel) -> None:
    store = KVStore(model.config, 256, torch.float32, model.device)
    blocks = list(range(200))
    spans = sorted((Span(length - 1, 1, blocks) for length in (3000, 2001, 2000, 130, 64, 5)), key=sort_key)
    groups = build_groups([*spans, Span(2000, 300, blocks)], store, window=64)
    assert [(group.first, group.last) for group in groups] == [(0, 6), (6, 134), (134, 262), (262, 306)]
    assert groups[0].length <= 64 + BLOCK_SIZE
    assert all(group.length <= 64 + TILE + BLOCK_SIZE for group in groups[1:])
