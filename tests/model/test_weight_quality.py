"""What a smaller type of the weights costs: the likelihood of prose and of generated chat under the embedded model.

``python -m tests.model.test_weight_quality`` prints the table of engine/kernels/README.md.

The embedded model comes in 4 bits, which its int4 weights take over as they are. To see what int4 costs a model that
comes in 16 bits, its dimensions are shuffled: the same function, with weights that lie on no grid of 32 any more.
"""

from __future__ import annotations

import json
import random
from dataclasses import replace
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from jinja2 import Template
from tokenizers import Tokenizer

from slotdeck.engine.kernels import build
from slotdeck.engine.kernels.library import Kernels
from slotdeck.engine.model import packed_cache
from slotdeck.engine.model.checkpoint import Checkpoint
from slotdeck.engine.model.llama import packing
from slotdeck.engine.model.llama.native_decoder import NativeDecoder
from slotdeck.engine.model.load import LoadedModel, find_model, load_model
from slotdeck.engine.model.runner import Runner
from tests.support.prose import choices, divergence, loss, predictions, prose
from tests.support.tiny_models import Driver, make_request

QUESTIONS = (
    "Explain to a child why the sky is blue.",
    "Write a short letter to a neighbour who plays the drums at night.",
    "How do I keep basil alive on a windowsill in winter?",
    "What should I look at first when my computer is slow?",
)
ANSWER = 150
"""Tokens generated for each question."""


class Shuffled:
    """A checkpoint of a model that computes the same with its dimensions in another order."""

    def __init__(self, inner: Checkpoint) -> None:
        source = np.random.default_rng(1)
        self.config, self._inner = inner.config, inner
        self.files, self.shapes, self.largest_tensor = inner.files, inner.shapes, inner.largest_tensor
        self._hidden = torch.from_numpy(source.permutation(inner.config.hidden_size))
        self._wide = torch.from_numpy(source.permutation(inner.config.intermediate_size))
        self._head = torch.from_numpy(source.permutation(inner.config.head_dim))

    def get(self, name: str) -> torch.Tensor:
        whole, part = self._inner.get(name), name.split(".")[-2]
        if whole.ndim == 1:
            return whole[self._hidden]
        if part in ("o_proj", "down_proj"):
            whole = whole[self._hidden][:, self._wide if part == "down_proj" else self._places(whole.shape[1])]
        else:
            whole = whole[:, self._hidden]
        if part in ("gate_proj", "up_proj"):
            return whole[self._wide]
        return whole[self._places(len(whole))] if part == "v_proj" else whole

    def _places(self, size: int) -> torch.Tensor:
        width = self.config.head_dim
        return (torch.arange(0, size, width)[:, None] + self._head).flatten()

    def rows(self, name: str, first: int, count: int) -> torch.Tensor:
        return self._inner.rows(name, first, count)[:, self._hidden]

    def rope_factors(self) -> torch.Tensor | None:
        return self._inner.rope_factors()


def shuffled(model: LoadedModel, weights: str) -> LoadedModel:
    """The model with ``weights`` made from a shuffled checkpoint; ``model`` gives all else."""
    checkpoint, kernels = Shuffled(find_model("smollm2", weights="fp32", device="cpu").checkpoint), Kernels(2)
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as folder, torch.inference_mode():
        # Nor may what was packed of the model itself pass for it, nor it for the model.
        patch.setenv("SLOTDECK_CACHE", folder)
        patch.setattr(packed_cache, "_MIN_KEPT_BYTES", 1 << 40)
        packed = packing.packed_model(checkpoint, kernels, 2, weights)
    return replace(model, decoder=NativeDecoder(model.config, packed, kernels), weights=weights)


def chat(model: LoadedModel) -> list[list[int]]:
    """Questions with the answers that ``model`` gives them, as tokens."""
    folder = model.tokenizer_folder
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    template = Template(json.loads((folder / "tokenizer_config.json").read_text())["chat_template"])
    prompts = [
        tokenizer.encode(
            template.render(messages=[{"role": "user", "content": question}], add_generation_prompt=True),
            add_special_tokens=False,
        ).ids
        for question in QUESTIONS
    ]
    blocks = 4 * 20
    driver = Driver(Runner(model, blocks, "fp32", 2), blocks, random.Random(0))
    requests = [make_request(str(i), prompt, temperature=0.7, seed=i) for i, prompt in enumerate(prompts)]
    answers = driver.generate(requests, ANSWER)
    return [prompt + answers[str(i)] for i, prompt in enumerate(prompts)]


@pytest.mark.model
@pytest.mark.skipif(build.compiler() is None, reason="no C++ compiler")
def test_int4_of_a_4_bit_model_answers_as_well_as_fp32(embedded_fp32: LoadedModel) -> None:
    ids = prose(embedded_fp32)
    exact = predictions(embedded_fp32, ids, "fp32")
    found = predictions(load_model("smollm2", weights="int4", device="cpu"), ids, "fp32")
    assert abs(loss(found, ids) - loss(exact, ids)) < 0.02
    assert divergence(found, exact) < 0.01


def main() -> None:
    torch.set_num_threads(2)
    exact_model = load_model("smollm2", weights="fp32", device="cpu")
    conversations = chat(exact_model)
    texts = {"prose": [prose(exact_model)], "chat": conversations}
    exact = {name: [predictions(exact_model, ids, "fp32") for ids in parts] for name, parts in texts.items()}
    for name, parts in texts.items():
        print(f"{sum(map(len, parts))} tokens of {name}")
    for label in ("fp32", "bf16", "int8", "int4", "int8 shuffled", "int4 shuffled"):
        weights, _, other = label.partition(" ")
        model = shuffled(exact_model, weights) if other else load_model("smollm2", weights=weights, device="cpu")
        line = f"| {label} |"
        for name, parts in texts.items():
            found = [predictions(model, ids, "fp32" if weights != "bf16" else "bf16") for ids in parts]
            nats = float(np.mean([loss(f, ids) for f, ids in zip(found, parts, strict=True)]))
            pairs = list(zip(found, exact[name], strict=True))
            line += f" {nats:.4f} | {np.mean([divergence(f, e) for f, e in pairs]):.5f} |"
            line += f" {np.mean([choices(f, e) for f, e in pairs]):.1%} |"
        print(line, flush=True)


if __name__ == "__main__":
    main()
