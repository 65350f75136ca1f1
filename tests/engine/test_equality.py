"""Greedy output of scheduler + runner equals transformers' ``generate``, whatever the batch, chunks and preemptions.

fp32 weights and KV. A difference is accepted only at a proven near tie of the two top logits, and ends the comparison
of that request there.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from slotdeck.engine.core.block_pool import BlockPool, blocks_for
from slotdeck.engine.core.events import Event
from slotdeck.engine.core.limits import check_pool_size
from slotdeck.engine.core.request import Request, SamplingParams, State, Timeline
from slotdeck.engine.core.scheduler import Scheduler
from slotdeck.engine.model.load import LoadedModel, load_model
from slotdeck.engine.model.runner import Runner
from slotdeck.engine.settings import LiveSettings, SettingsError

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


class Drive:
    """Scheduler and runner together, as the loop drives them, with random arrivals and random live changes."""

    def __init__(self, twin: Twin, settings: LiveSettings, blocks: int, *, seed: int) -> None:
        self.chance = random.Random(seed)
        self.runner = Runner(twin.ours, blocks, "fp32", threads=1)
        self.scheduler = Scheduler(settings, BlockPool(blocks), self.runner.block_bytes)
        self.events: list[Event] = []
        self.computed = 0
        self.now = 0.0

    def serve(
        self, prompts: list[list[int]], outputs: list[int], change: Callable[[Drive], None] | None = None
    ) -> list[Request]:
        """Run all prompts to their end, calling ``change`` between steps now and then."""
        requests = []
        for number, (prompt, count) in enumerate(zip(prompts, outputs, strict=True)):
            params = SamplingParams(max_tokens=count, temperature=0.0)
            user = f"user{number % 3}"
            requests.append(Request(f"r{number}", user, list(prompt), params, Timeline(0.0, 0.0)))
        coming = list(requests)
        self.chance.shuffle(coming)
        while coming or self.scheduler.has_work:
            while coming and (not self.scheduler.has_work or self.chance.random() < 0.3):
                self.scheduler.add(coming.pop())
            if change is not None and self.chance.random() < 0.15:
                change(self)
            self.step()
        assert self.scheduler.pool.num_used == 0
        assert self.runner.swapped_bytes == 0
        return requests

    def step(self) -> None:
        self.now += 1.0
        plan, events = self.scheduler.plan(self.now)
        result = self.runner.run(plan)
        assert not result.failures
        self.events += events + self.scheduler.commit(plan, result, self.now + 0.5)
        self.scheduler.check()
        self.computed += plan.num_prefill_tokens

    def resize(self, blocks: int) -> None:
        try:
            check_pool_size(blocks, self.scheduler.settings, self.scheduler.requests())
        except SettingsError:
            return
        grows = blocks > self.scheduler.pool.num_blocks
        if grows:
            self.runner.resize(blocks)
        moves, events = self.scheduler.resize(blocks, self.now)
        self.events += events
        if not grows:
            self.runner.move(list(moves.items()))
            self.runner.resize(blocks)

    def update(self, **changes: object) -> None:
        self.scheduler.update(self.scheduler.settings.model_copy(update=changes))


def random_change(drive: Drive) -> None:
    """Anything that an admin may turn while people stream."""
    chance, least = drive.chance, blocks_for(drive.scheduler.settings.context)
    kind = chance.randrange(5)
    if kind == 0:
        drive.update(slots=chance.randint(1, 8), budget=chance.choice([1, 3, 16, 64, 256]))
    elif kind == 1:
        drive.update(mode=chance.choice(["serial", "static", "continuous", "continuous"]))
    elif kind == 2:
        drive.update(preemption=chance.choice(["recompute", "swap"]), swap_space=chance.choice([0, 1 << 14, 1 << 20]))
    elif kind == 3:
        drive.update(prefix_cache=chance.random() < 0.7, prefix_sharing=chance.random() < 0.5)
    else:
        drive.resize(least + chance.randint(0, 20))


@pytest.mark.parametrize("seed", range(6))
def test_equal_under_random_arrivals_budgets_slots_and_small_pools(twin: Twin, seed: int) -> None:
    chance = random.Random(seed)
    prompts = [[chance.randrange(1, 199) for _ in range(chance.randint(1, 90))] for _ in range(9)]
    outputs = [chance.randint(1, 40) for _ in prompts]
    budget = [1, 7, 16, 64, 100, 256][seed]
    slots = [1, 3, 8, 5, 8, 2][seed]
    largest = max(blocks_for(len(prompt) + count) for prompt, count in zip(prompts, outputs, strict=True))
    blocks = [40, max(largest, slots), largest + 2, largest + 4, 60, largest][seed]
    drive = Drive(
        twin, LiveSettings(slots=slots, context=min(512, largest * 16), queue=64, budget=budget), blocks, seed=seed
    )
    requests = drive.serve(prompts, outputs)
    for request, prompt, count in zip(requests, prompts, outputs, strict=True):
        assert request.state is State.FINISHED
        twin.assert_equal(request, twin.expected(prompt, count))


@pytest.mark.parametrize("seed", range(8))
def test_equal_across_modes_prefix_hits_both_preemptions_and_resizes(twin: Twin, seed: int) -> None:
    chance = random.Random(100 + seed)
    beginnings = [[chance.randrange(1, 199) for _ in range(40)] for _ in range(2)]
    prompts = [
        [*chance.choice(beginnings)[: chance.choice([0, 20, 40])], *(chance.randrange(1, 199) for _ in range(30))]
        for _ in range(12)
    ]
    outputs = [chance.randint(10, 60) for _ in prompts]
    largest = max(blocks_for(len(prompt) + count) for prompt, count in zip(prompts, outputs, strict=True))
    settings = LiveSettings(slots=4, context=largest * 16, queue=64, budget=32, preemption="swap")
    drive = Drive(twin, settings, largest + 3, seed=seed)
    requests = drive.serve(prompts, outputs, random_change)
    for request, prompt, count in zip(requests, prompts, outputs, strict=True):
        assert request.state is State.FINISHED
        twin.assert_equal(request, twin.expected(prompt, count))


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_kv_04_and_18_equal_when_preempted_many_times(twin: Twin, preemption: str) -> None:
    chance = random.Random(99)
    prompts = [[chance.randrange(1, 199) for _ in range(20)] for _ in range(4)]
    settings = LiveSettings(slots=4, context=96, queue=16, budget=32, preemption=preemption)  # type: ignore[arg-type]
    drive = Drive(twin, settings, 8, seed=5)
    requests = drive.serve(prompts, [70] * 4)
    assert sum(request.num_preemptions for request in requests) >= 2
    assert (sum(request.swapped_bytes for request in requests) > 0) == (preemption == "swap")
    for request, prompt in zip(requests, prompts, strict=True):
        twin.assert_equal(request, twin.expected(prompt, 70))


def test_a_prefix_hit_changes_nothing_but_the_work(twin: Twin) -> None:
    chance = random.Random(3)
    beginning = [chance.randrange(1, 199) for _ in range(64)]
    prompts = [[*beginning, *(chance.randrange(1, 199) for _ in range(10))] for _ in range(6)]
    drive = Drive(twin, LiveSettings(slots=1, context=128, queue=16, budget=64, prefix_sharing=True), 30, seed=1)
    requests = drive.serve(prompts, [12] * 6)
    assert drive.computed == 74 + 5 * 10
    for request, prompt in zip(requests, prompts, strict=True):
        twin.assert_equal(request, twin.expected(prompt, 12))


@pytest.mark.model
def test_num_01_the_embedded_model_equals_generate_alone_and_in_company() -> None:
    from transformers import AutoModelForCausalLM

    from slotdeck.engine.model.fetch import embedded_model_path
    from slotdeck.engine.text.tokenizer import TextModel

    path = embedded_model_path()
    ours = load_model("smollm2", weights="fp32", device="cpu")
    theirs = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()
    twin = Twin(ours, theirs)
    text = TextModel(ours.tokenizer_folder)
    questions = ["What is the capital of France?", "Name three colours.", "Why is the sky blue?", "Count to ten."]
    prompts = [text.encode_chat([{"role": "user", "content": question}]) for question in questions]
    settings = LiveSettings(slots=4, context=96, queue=16, budget=24, preemption="swap")
    requests = Drive(twin, settings, 9, seed=1).serve(prompts, [24] * 4)
    for request, prompt in zip(requests, prompts, strict=True):
        twin.assert_equal(request, twin.expected(prompt, 24))
