"""The proof of the decoder: in fp32 it computes what `transformers` computes, however the work is cut."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from slotdeck.engine.core.step import ScheduledRequest, SchedulerOutput
from slotdeck.engine.model import runner as runner_module
from slotdeck.engine.model.load import load_model
from slotdeck.engine.model.runner import Runner
from tests.support.tiny_models import (
    Driver,
    assert_greedy,
    make_request,
    random_prompt,
    save_tiny_llama,
    save_tiny_mistral,
)

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
SHAPES: dict[str, dict[str, Any]] = {
    "grouped": {},
    "tied": {"tie_word_embeddings": True},
    "one kv head": {"num_key_value_heads": 1, "num_hidden_layers": 2},
    "each its own kv head": {"num_key_value_heads": 4},
    "wide heads, odd sizes": {"head_dim": 24, "num_attention_heads": 6, "num_key_value_heads": 3, "hidden_size": 72},
    "linear scaling": {"rope_parameters": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 4.0}},
    "llama3 scaling": {"rope_parameters": LLAMA3},
}


@pytest.mark.parametrize("name", SHAPES)
def test_greedy_equals_transformers_under_random_chunks_and_batches(tmp_path: Path, name: str) -> None:
    reference = save_tiny_llama(tmp_path, seed=len(name), **SHAPES[name])
    source = random.Random(name)
    runner = Runner(load_model(str(tmp_path), weights="fp32", device="cpu"), num_blocks=96)
    for budget in (1, 7, 64, 256):
        driver = Driver(runner, 96, source, budget)
        lengths = [source.randint(1, 40 if budget == 1 else 180) for _ in range(6)]
        requests = [make_request(str(i), random_prompt(source, n)) for i, n in enumerate(lengths)]
        outputs = driver.generate(requests, 16)
        assert not driver.failures
        for request in requests:
            assert_greedy(reference, request.token_ids[: request.num_prompt_tokens], outputs[request.id])


@pytest.mark.parametrize("window", [None, 1, 48, 150])
def test_logits_of_chunks_equal_those_of_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window: int | None
) -> None:
    reference = save_tiny_mistral(tmp_path, sliding_window=window)
    runner = Runner(load_model(str(tmp_path), weights="fp32", device="cpu"), num_blocks=40)
    seen: list[torch.Tensor] = []
    inner = runner_module.sample
    monkeypatch.setattr(
        runner_module, "sample", lambda logits, *rest: (seen.append(logits.clone()), inner(logits, *rest))[1]
    )
    prompt = random_prompt(random.Random(1), 333)
    with torch.inference_mode():
        wanted = reference(torch.tensor([prompt])).logits[0]
    for chunk in (1, 16, 50, 127, 128, 129, 333):
        request = make_request("a", prompt)
        request.block_ids = random.Random(chunk).sample(range(40), 21)
        for start in range(0, 333, chunk):
            count = min(chunk, 333 - start)
            seen.clear()
            runner.run(SchedulerOutput(rows=(ScheduledRequest(request, start, count, True),), num_decodes=0))
            torch.testing.assert_close(seen[0][0], wanted[start + count - 1], rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize("window", [1, 16, 48])
def test_kv_16_greedy_equals_transformers_across_a_sliding_window(tmp_path: Path, window: int) -> None:
    reference = save_tiny_mistral(tmp_path, sliding_window=window)
    model = load_model(str(tmp_path), weights="fp32", device="cpu")
    assert (model.config.sliding_window, model.config.max_positions) == (window, 512)
    source = random.Random(window)
    runner = Runner(model, num_blocks=96)
    for budget in (1, 7, 64, 256):
        driver = Driver(runner, 96, source, budget)
        lengths = [max(1, window - 1), window, window + 1, 2 * window, source.randint(1, 40 if budget == 1 else 180)]
        requests = [make_request(str(i), random_prompt(source, n)) for i, n in enumerate(lengths)]
        outputs = driver.generate(requests, 16)
        assert not driver.failures
        for request in requests:
            assert_greedy(reference, request.token_ids[: request.num_prompt_tokens], outputs[request.id])


def test_recomputing_after_preemption_changes_nothing(tmp_path: Path) -> None:
    reference = save_tiny_llama(tmp_path)
    runner = Runner(load_model(str(tmp_path), weights="fp32", device="cpu"), num_blocks=32)
    driver = Driver(runner, 32, random.Random(5), 32)
    prompts = [random_prompt(driver.random, n) for n in (20, 55, 90)]
    requests = [make_request(str(i), prompt) for i, prompt in enumerate(prompts)]
    while any(request.num_output_tokens < 30 for request in requests):
        driver.apply(driver.step(requests), requests)
        if driver.random.random() < 0.15:
            driver.release(driver.random.choice(requests))
    for prompt, request in zip(prompts, requests, strict=True):
        assert_greedy(reference, prompt, request.output_token_ids[:30])


@pytest.mark.parametrize("kv_dtype", ["bf16", "fp16", "int8"])
def test_a_smaller_pool_type_is_read_back_as_stored_whatever_the_chunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kv_dtype: str
) -> None:
    save_tiny_llama(tmp_path)
    runner = Runner(load_model(str(tmp_path), weights="fp32", device="cpu"), num_blocks=16, kv_dtype=kv_dtype)
    assert runner.kv_dtype == kv_dtype
    seen: list[torch.Tensor] = []
    inner = runner_module.sample
    monkeypatch.setattr(
        runner_module, "sample", lambda logits, *rest: (seen.append(logits.clone()), inner(logits, *rest))[1]
    )
    prompt = random_prompt(random.Random(1), 100)
    for chunk in (1, 30, 100):
        request = make_request("a", prompt)
        request.block_ids = random.Random(chunk).sample(range(16), 7)
        for start in range(0, 100, chunk):
            count = min(chunk, 100 - start)
            runner.run(
                SchedulerOutput(rows=(ScheduledRequest(request, start, count, start + count == 100),), num_decodes=0)
            )
    for other in seen[1:]:
        torch.testing.assert_close(other, seen[0], rtol=0.02, atol=0.05)


@pytest.mark.model
def test_embedded_model_equals_transformers_own_gguf_loading(embedded_fp32: Any, embedded_reference: Any) -> None:
    from transformers import AutoTokenizer

    reference = embedded_reference
    tokenizer = AutoTokenizer.from_pretrained(embedded_fp32.tokenizer_folder)
    questions = ["What is the capital of France?", "List three colours.", "Why is the sky blue? " * 12]
    prompts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True, return_dict=False
        )
        for question in questions
    ]
    driver = Driver(Runner(embedded_fp32, num_blocks=64), 64, random.Random(7), 48)
    requests = [make_request(str(i), prompt) for i, prompt in enumerate(prompts)]
    outputs = driver.generate(requests, 24)
    for prompt, request in zip(prompts, requests, strict=True):
        assert_greedy(reference, prompt, outputs[request.id])
    assert "Paris" in tokenizer.decode(outputs["0"])
