"""Greedy output of scheduler + runner equals transformers' ``generate``, whatever the batch, chunks and preemptions.

fp32 weights and KV. A difference is accepted only at a proven near tie of the two top logits, and ends the comparison
of that request there.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.core.block_pool import BlockPool, blocks_for
from engine.core.request import Request, SamplingParams, State, Timeline
from engine.core.scheduler import Scheduler
from engine.model.load import LoadedModel, load_model
from engine.model.runner import Runner
from engine.settings import LiveSettings

NEAR_TIE = 1e-3
"""Logit difference under which fp32 rounding may decide between two tokens."""


@dataclass
class Twin:
    """Our engine's model and transformers' model of the same weights."""

    ours: LoadedModel
    theirs: Any

    def expected(self, prompt: list[int], count: int) -> list[int]:
        self.theirs.generation_config.eos_token_id = None  # go on beyond an end token, as our requests here do
        with torch.inference_mode():
            output = self.theirs.generate(torch.tensor([prompt]), max_new_tokens=count, do_sample=False, pad_token_id=0)
        return output[0, len(prompt) :].tolist()

    def assert_equal(self, request: Request, expected: list[int]) -> None:
        output = request.output_token_ids
        assert len(output) == len(expected)
        for position, (got, wanted) in enumerate(zip(output, expected, strict=True)):
            if got == wanted:
                continue
            known = torch.tensor([request.token_ids[: request.num_prompt_tokens + position]])
            with torch.inference_mode():
                logits = self.theirs(known).logits[0, -1]
            difference = float(logits[wanted] - logits[got])
            assert abs(difference) < NEAR_TIE, f"{request.id} differs at {position}: {got} not {wanted}, {difference}"
            return


def make_twin(folder: Path, **overrides: Any) -> Twin:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(overrides.pop("seed", 0))
    shape: dict[str, Any] = {
        "vocab_size": 199,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "initializer_range": 0.3,  # wide, so that random logits are far apart
        "bos_token_id": None,
        "eos_token_id": None,
    }
    theirs = LlamaForCausalLM(LlamaConfig(**(shape | overrides))).eval()
    theirs.save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}")  # token ids are all that is compared here
    return Twin(load_model(str(folder), weights="fp32", device="cpu"), theirs)


@pytest.fixture(scope="module", params=[{}, {"num_key_value_heads": 4, "tie_word_embeddings": True, "seed": 3}])
def twin(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Twin:
    return make_twin(tmp_path_factory.mktemp("tiny"), **request.param)


def serve(
    twin: Twin, settings: LiveSettings, blocks: int, prompts: list[list[int]], outputs: list[int], *, seed: int
) -> tuple[list[Request], Scheduler]:
    """Run all prompts with random arrivals and random live changes; gives the requests and the scheduler."""
    chance = random.Random(seed)
    scheduler = Scheduler(settings, BlockPool(blocks))
    runner = Runner(twin.ours, blocks, "fp32", threads=1)
    requests = [
        Request(f"r{i}", "user", list(prompt), SamplingParams(max_tokens=count, temperature=0.0), Timeline(0.0, 0.0))
        for i, (prompt, count) in enumerate(zip(prompts, outputs, strict=True))
    ]
    coming = list(requests)
    chance.shuffle(coming)
    now = 0.0
    while coming or scheduler.has_work:
        now += 1.0
        while coming and (not scheduler.has_work or chance.random() < 0.3):
            scheduler.add(coming.pop())
        if chance.random() < 0.1:
            slots, budget = chance.randint(1, settings.slots), chance.choice([1, 3, 16, 64, settings.budget])
            scheduler.update(settings.model_copy(update={"slots": slots, "budget": budget}))
        plan, _ = scheduler.plan(now)
        result = runner.run(plan)
        assert not result.failures
        scheduler.commit(plan, result, now + 0.5)
        scheduler.check()
    return requests, scheduler


@pytest.mark.parametrize("seed", range(6))
def test_equal_under_random_arrivals_budgets_slots_and_small_pools(twin: Twin, seed: int) -> None:
    chance = random.Random(seed)
    prompts = [[chance.randrange(1, 199) for _ in range(chance.randint(1, 90))] for _ in range(9)]
    outputs = [chance.randint(1, 40) for _ in prompts]
    budget = [1, 7, 16, 64, 100, 256][seed]
    slots = [1, 3, 8, 5, 8, 2][seed]
    largest = max(blocks_for(len(prompt) + count) for prompt, count in zip(prompts, outputs, strict=True))
    blocks = [40, largest, largest + 2, largest + 4, 60, largest][seed]
    settings = LiveSettings(slots=slots, context=min(512, blocks * 16), queue=64, budget=budget)
    requests, scheduler = serve(twin, settings, blocks, prompts, outputs, seed=seed)
    for request, prompt, count in zip(requests, prompts, outputs, strict=True):
        assert request.state is State.FINISHED
        twin.assert_equal(request, twin.expected(prompt, count))
    assert scheduler.pool.num_used == 0


def test_equal_when_preempted_many_times(twin: Twin) -> None:
    chance = random.Random(99)
    prompts = [[chance.randrange(1, 199) for _ in range(20)] for _ in range(4)]
    outputs = [70] * 4
    settings = LiveSettings(slots=4, context=96, queue=16, budget=32)
    requests, _ = serve(twin, settings, 8, prompts, outputs, seed=5)
    assert sum(request.num_preemptions for request in requests) >= 2
    for request, prompt in zip(requests, prompts, strict=True):
        twin.assert_equal(request, twin.expected(prompt, 70))


@pytest.mark.model
def test_num_01_the_embedded_model_equals_generate_alone_and_in_company() -> None:
    from transformers import AutoModelForCausalLM

    from engine.model.fetch import embedded_model_path
    from engine.text.tokenizer import TextModel

    path = embedded_model_path()
    ours = load_model("smollm2", weights="fp32", device="cpu")
    theirs = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()
    twin = Twin(ours, theirs)
    text = TextModel(ours.tokenizer_folder)
    questions = ["What is the capital of France?", "Name three colours.", "Why is the sky blue?", "Count to ten."]
    prompts = [text.encode_chat([{"role": "user", "content": question}]) for question in questions]
    settings = LiveSettings(slots=4, context=96, queue=16, budget=24)
    requests, _ = serve(twin, settings, 9, prompts, [24] * 4, seed=1)
    for request, prompt in zip(requests, prompts, strict=True):
        twin.assert_equal(request, twin.expected(prompt, 24))
