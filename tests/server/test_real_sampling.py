"""How the sampling fields change the answers of the embedded model, over HTTP with the ``openai`` client."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from slotdeck.engine.model.load import LoadedModel
from slotdeck.engine.text.tokenizer import TextModel
from tests.support.real_engine import RealEngine

pytestmark = pytest.mark.model

QUESTION = "What is the capital of France?"
POEM = "Write a poem in which every line says the sea is blue."


@pytest.fixture(scope="module")
def text(embedded_fp32: LoadedModel) -> TextModel:
    return TextModel(embedded_fp32.tokenizer_folder)


@pytest.fixture(scope="module")
def engine() -> Iterator[RealEngine]:
    with RealEngine(weights="fp32", slots=4, context=512, queue=8) as running:
        yield running
        assert running.wait_until_idle().pool.live == 0


def ask(engine: RealEngine, prompt: str, **fields: Any) -> Any:
    client = openai.OpenAI(base_url=f"{engine.url}/v1", api_key="none", max_retries=0, timeout=120)
    ours = ("min_p", "repetition_penalty", "min_tokens", "ignore_eos", "stop_token_ids", "top_k")
    extra = {name: fields.pop(name) for name in ours if name in fields}
    messages: Any = [{"role": "user", "content": prompt}]
    return client.chat.completions.create(
        model="SmolLM2-135M-Instruct",
        messages=messages,
        extra_body=extra,
        **({"temperature": 0, "max_tokens": 40} | fields),
    )


def written(engine: RealEngine, prompt: str, **fields: Any) -> str:
    return ask(engine, prompt, **fields).choices[0].message.content or ""


def most_repeated(answer: str) -> int:
    return max(Counter(answer.lower().split()).values(), default=0)


def test_logit_bias_forces_and_forbids_a_token(engine: RealEngine, text: TextModel) -> None:
    (cat,) = text._encode(text._tokenizer, " cat")
    assert written(engine, QUESTION, max_tokens=4, logit_bias={str(cat): 100}) == " cat cat cat cat"
    (paris,) = text._encode(text._tokenizer, " Paris")
    assert "Paris" in written(engine, QUESTION)
    assert " Paris" not in written(engine, QUESTION, logit_bias={str(paris): -100})


def test_penalties_break_repetition(engine: RealEngine) -> None:
    penalties = ({}, {"frequency_penalty": 1.5}, {"presence_penalty": 2}, {"repetition_penalty": 1.5},
                 {"frequency_penalty": -1})  # fmt: skip

    def repetitions(penalty: dict[str, float]) -> int:
        return most_repeated(written(engine, POEM, ignore_eos=True, max_tokens=80, **penalty))

    with ThreadPoolExecutor(len(penalties)) as together:
        plain, *fewer, more = together.map(repetitions, penalties)
    assert max(fewer) < plain < more


def test_min_tokens_ignore_eos_and_stop_token_ids(engine: RealEngine, text: TextModel) -> None:
    short = ask(engine, QUESTION, max_tokens=200)
    assert short.choices[0].finish_reason == "stop"  # REQ-27: the model's own end token
    count = short.usage.completion_tokens
    longer = ask(engine, QUESTION, max_tokens=count + 40, min_tokens=count + 20)
    assert longer.usage.completion_tokens >= count + 20
    assert longer.choices[0].message.content.startswith(short.choices[0].message.content[:20])
    on = ask(engine, QUESTION, max_tokens=count + 40, ignore_eos=True)
    assert (on.choices[0].finish_reason, on.usage.completion_tokens) == ("length", count + 40)
    (paris,) = text._encode(text._tokenizer, " Paris")
    cut = ask(engine, QUESTION, stop_token_ids=[paris])
    assert cut.choices[0].finish_reason == "stop"
    assert short.choices[0].message.content.startswith(cut.choices[0].message.content + " Paris")


def test_min_p_keeps_to_likely_words(engine: RealEngine) -> None:
    greedy = written(engine, QUESTION)
    assert written(engine, QUESTION, temperature=2, min_p=1, seed=1) == greedy
    assert written(engine, QUESTION, temperature=2, min_p=0, seed=1) != greedy


def test_logprobs_are_those_of_transformers(engine: RealEngine, text: TextModel, embedded_reference: Any) -> None:
    import torch

    for fields in ({}, {"temperature": 1.0, "seed": 5, "presence_penalty": 1.0}):
        choice = ask(engine, QUESTION, max_tokens=12, logprobs=True, top_logprobs=20, **fields).choices[0]
        entries = choice.logprobs.content
        assert "".join(entry.token for entry in entries) == choice.message.content
        ids = text.encode_chat([{"role": "user", "content": QUESTION}])
        start = len(ids)
        by_bytes = {text.token_bytes(index): index for index in reversed(range(49152))}
        ids += [by_bytes[bytes(entry.bytes)] for entry in entries]
        with torch.inference_mode():
            expected = torch.log_softmax(embedded_reference(torch.tensor([ids])).logits[0].float(), -1)
        for position, entry in enumerate(entries, start=start - 1):
            assert entry.logprob == pytest.approx(float(expected[position, ids[position + 1]]), abs=2e-3)
            best = [alternative.logprob for alternative in entry.top_logprobs]
            assert best == pytest.approx(expected[position].topk(20).values.tolist(), abs=2e-3)
            assert sum(map(math.exp, best)) <= 1.001


def test_choices_are_those_of_their_seeds(engine: RealEngine) -> None:
    fields: dict[str, Any] = {"temperature": 1.0, "max_tokens": 16}
    solo = [written(engine, POEM, seed=20 + index, **fields) for index in range(3)]
    together = ask(engine, POEM, seed=20, n=3, **fields)
    assert [choice.index for choice in together.choices] == [0, 1, 2]
    assert [choice.message.content for choice in together.choices] == solo
    assert len(set(solo)) == 3
    assert together.usage.completion_tokens == 48
    assert together.usage.prompt_tokens_details.cached_tokens > 0
    streamed = dict.fromkeys(range(3), "")
    for chunk in ask(engine, POEM, seed=20, n=3, stream=True, **fields):
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
    assert list(streamed.values()) == solo
