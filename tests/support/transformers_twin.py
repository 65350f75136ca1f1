"""The same small model in Slotdeck and in transformers, and a random drive of scheduler and runner."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from slotdeck.engine.core.block_pool import BlockPool, blocks_for
from slotdeck.engine.core.events import Event
from slotdeck.engine.core.invariants import check_scheduler
from slotdeck.engine.core.limits import check_pool_size
from slotdeck.engine.core.request import Request, SamplingParams, Timeline
from slotdeck.engine.core.scheduler import Scheduler
from slotdeck.engine.model.load import LoadedModel, load_model
from slotdeck.engine.model.runner import Runner
from slotdeck.engine.settings import LiveSettings, SettingsError
from tests.support.tiny_models import perturb_norms

NEAR_TIE = 1e-3
"""Difference of two logits below which fp32 rounding may decide between their tokens."""


@dataclass
class Twin:
    """The same weights in Slotdeck's model and in transformers' model."""

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
        "rms_norm_eps": 0.05,  # so large that leaving it out changes the text
        "initializer_range": 0.3,  # wide, so that random logits are far apart
        "bos_token_id": None,
        "eos_token_id": None,
    }
    theirs = LlamaForCausalLM(LlamaConfig(**(shape | overrides))).eval()
    perturb_norms(theirs)
    theirs.save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}")  # token ids are all that is compared here
    return Twin(load_model(str(folder), weights="fp32", device="cpu"), theirs)


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
        plan, events = self.scheduler.schedule(self.now)
        result = self.runner.run(plan)
        assert not result.failures
        self.events += events + self.scheduler.update_from_output(plan, result, self.now + 0.5)
        check_scheduler(self.scheduler)
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
    """Change one setting at random, out of those that an admin can change while people stream."""
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
