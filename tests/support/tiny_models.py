"""Tiny models on disk, and a driver that feeds the runner hand-made plans as a scheduler would."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM, PreTrainedTokenizerFast

from slotdeck.engine.core.request import Request, SamplingParams, Timeline
from slotdeck.engine.core.step import ModelRunnerOutput, ScheduledRequest, SchedulerOutput
from slotdeck.engine.model.runner import Runner
from slotdeck.engine.settings import BLOCK_SIZE

VOCABULARY = 300


def save_tokenizer(folder: Path, eos: str = "<end>") -> None:
    """A byte-level tokenizer without merges: 256 bytes and a few special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=eos)
    fast.save_pretrained(folder)


def tiny_config(**changes: Any) -> LlamaConfig:
    """A Llama small enough to generate in milliseconds, with weights large enough that attention matters."""
    values: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 112,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "initializer_range": 0.15,
        "rms_norm_eps": 0.05,  # so large that leaving it out changes the text
        "tie_word_embeddings": False,
        "eos_token_id": None,
        "bos_token_id": None,
        "pad_token_id": None,
    }
    return LlamaConfig(**(values | changes))


def perturb_norms(model: torch.nn.Module) -> None:
    """Replace the ones of the norm weights, which would hide that one norm is used in place of another."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.rand_like(parameter) - 0.5)


def save_tiny_llama(folder: Path, seed: int = 0, shard_size: str = "5GB", **changes: Any) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    model = LlamaForCausalLM(tiny_config(**changes)).eval()
    perturb_norms(model)
    model.generation_config.eos_token_id = None
    model.save_pretrained(folder, max_shard_size=shard_size)
    save_tokenizer(folder)
    return model


def save_tiny_mistral(folder: Path, seed: int = 0, **changes: Any) -> MistralForCausalLM:
    torch.manual_seed(seed)
    values = {name: value for name, value in tiny_config().to_dict().items() if name not in ("model_type", "head_dim")}
    model = MistralForCausalLM(MistralConfig(**(values | changes))).eval()
    perturb_norms(model)
    model.save_pretrained(folder)
    save_tokenizer(folder)
    return model


def make_request(id: str, prompt: list[int], **sampling: Any) -> Request:
    sampling = {"max_tokens": 1000, "temperature": 0.0} | sampling
    return Request(id=id, user="", token_ids=list(prompt), sampling=SamplingParams(**sampling), timeline=Timeline(0, 0))


@dataclass
class Driver:
    """Runs requests with random chunks and scattered blocks, in one flat batch per step.

    ``budget`` is the most prefill tokens in a step. Blocks are handed out in random order and go back when a request
    is done.
    """

    runner: Runner
    num_blocks: int
    random: random.Random
    budget: int = 64
    free: list[int] = field(init=False)
    failures: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.free = list(range(self.num_blocks))
        self.random.shuffle(self.free)

    def generate(self, requests: list[Request], num_tokens: int) -> dict[str, list[int]]:
        """The first ``num_tokens`` output tokens of each request; the requests arrive one by one, at random steps."""
        arriving, running = list(requests), []
        while arriving or running:
            while arriving and (not running or self.random.random() < 0.5):
                running.append(arriving.pop(0))
            self.apply(self.step(running), running)
            for request in [r for r in running if r.num_output_tokens >= num_tokens or r.id in self.failures]:
                running.remove(request)
                self.release(request)
        return {request.id: request.output_token_ids for request in requests}

    def step(self, running: list[Request]) -> ModelRunnerOutput:
        """Plan and run one step: all decodes, then random chunks within the budget."""
        decodes = [ScheduledRequest(r, r.num_computed_tokens, 1, True) for r in running if r.decoding]
        chunks, left = [], self.random.randint(1, self.budget)
        for request in running:
            missing = request.num_tokens - request.num_computed_tokens
            if request.decoding or left == 0:
                continue
            count = min(missing, self.random.randint(1, left))
            chunks.append(ScheduledRequest(request, request.num_computed_tokens, count, count == missing))
            left -= count
        for row in decodes + chunks:
            needed = (row.start + row.count - 1) // BLOCK_SIZE + 1
            while len(row.request.block_ids) < needed:
                row.request.block_ids.append(self.free.pop())
        result = self.runner.run(SchedulerOutput(rows=tuple(decodes + chunks), num_decodes=len(decodes)))
        for row in decodes + chunks:
            row.request.num_computed_tokens += row.count
        return result

    def apply(self, result: ModelRunnerOutput, running: list[Request]) -> None:
        self.failures |= result.failures
        for request in running:
            if request.id in result.tokens:
                request.token_ids.append(result.tokens[request.id])

    def release(self, request: Request) -> None:
        self.free += request.block_ids
        self.random.shuffle(self.free)
        request.block_ids = []
        request.num_computed_tokens = 0


def random_prompt(source: random.Random, length: int, vocabulary: int = VOCABULARY) -> list[int]:
    return [source.randrange(vocabulary) for _ in range(length)]


def assert_greedy(reference: Any, prompt: list[int], output: list[int], tie: float = 1e-3) -> None:
    """Assert that ``output`` is what `transformers` generates greedily. A difference is allowed only at a near tie."""
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        wanted = reference.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=len(output), do_sample=False, eos_token_id=None,
            pad_token_id=0,
        )[0, len(prompt) :].tolist()  # fmt: skip
        if wanted == output:
            return
        at = next(i for i, (ours, theirs) in enumerate(zip(output, wanted, strict=True)) if ours != theirs)
        logits = reference(torch.tensor([prompt + output[:at]])).logits[0, -1].float()
    gap = float(logits[wanted[at]] - logits[output[at]])
    assert gap < tie, f"token {at}: {output[at]} instead of {wanted[at]}, {gap:.4f} below in the reference"
