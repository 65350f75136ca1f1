"""Greedy output of scheduler + runner equals transformers' ``generate``, whatever the batch, chunks and preemptions.

fp32 weights and KV. A difference is accepted only at a proven near tie of the two top logits, and ends the comparison
of that request there.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from slotdeck.engine.core.block_pool import blocks_for
from slotdeck.engine.core.request import State
from slotdeck.engine.model.load import LoadedModel
from slotdeck.engine.settings import LiveSettings
from tests.support.transformers_twin import Drive, Twin, make_twin, random_change


@pytest.fixture(scope="module", params=[{}, {"num_key_value_heads": 4, "tie_word_embeddings": True, "seed": 3}])
def twin(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Twin:
    return make_twin(tmp_path_factory.mktemp("tiny"), **request.param)


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
def test_num_01_the_embedded_model_equals_generate_alone_and_in_company(
    embedded_fp32: LoadedModel, embedded_reference: Any
) -> None:
    from slotdeck.engine.text.tokenizer import TextModel

    twin = Twin(embedded_fp32, embedded_reference)
    text = TextModel(embedded_fp32.tokenizer_folder)
    questions = ["What is the capital of France?", "Name three colours.", "Why is the sky blue?", "Count to ten."]
    prompts = [text.encode_chat([{"role": "user", "content": question}]) for question in questions]
    settings = LiveSettings(slots=4, context=96, queue=16, budget=24, preemption="swap")
    requests = Drive(twin, settings, 9, seed=1).serve(prompts, [24] * 4)
    for request, prompt in zip(requests, prompts, strict=True):
        twin.assert_equal(request, twin.expected(prompt, 24))
