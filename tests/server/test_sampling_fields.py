"""The sampling fields of a request reach the engine, and log-probabilities come back."""

from __future__ import annotations

from typing import Any

import pytest
from openai import OpenAI

from slotdeck.engine.core.request import SamplingParams
from tests.support.stub_server import MODEL, RunningServer, events, text_of


def params(server: RunningServer, **fields: Any) -> SamplingParams:
    assert server.chat(**({"max_tokens": 3} | fields)).status_code == 200
    return server.runner.params[-1]


def test_every_field_reaches_the_engine(server: RunningServer) -> None:
    ends = server.text.end_token_ids
    assert ends
    assert params(
        server, temperature=0.5, top_p=0.9, top_k=40, min_p=0.05, repetition_penalty=1.1, presence_penalty=-1,
        frequency_penalty=0.25, logit_bias={"7": 5, "0": -100}, min_tokens=2, seed=42, stop_token_ids=[300],
        logprobs=True, top_logprobs=20,
    ) == SamplingParams(
        max_tokens=3, temperature=0.5, top_p=0.9, top_k=40, min_p=0.05, repetition_penalty=1.1, presence_penalty=-1.0,
        frequency_penalty=0.25, logit_bias=((7, 5.0), (0, -100.0)), min_tokens=2, seed=42,
        stop_token_ids=ends | {300}, top_logprobs=20,
    )  # fmt: skip
    plain = params(server, seed=1)
    assert plain == SamplingParams(max_tokens=3, seed=1, stop_token_ids=ends)
    assert params(server, ignore_eos=True).stop_token_ids == frozenset()
    assert params(server, ignore_eos=True, stop_token_ids=[5]).stop_token_ids == {5}
    assert params(server, logprobs=True).top_logprobs == 0
    assert params(server).seed != params(server).seed
    off = params(server, top_k=-1, top_p=0)  # as in other servers: all tokens, and only the best one
    assert (off.top_k, off.top_p) == (0, 0.0)


@pytest.mark.parametrize("stream", [False, True])
def test_ignore_eos_continues_after_an_end_token(server: RunningServer, stream: bool) -> None:
    response = server.chat("say: hello", ignore_eos=True, max_tokens=20, stream=stream, logprobs=True)
    choice = events(response)[-1]["choices"][0] if stream else response.json()["choices"][0]
    assert choice["finish_reason"] == "length"
    if not stream:
        assert response.json()["usage"]["completion_tokens"] == 20
        assert choice["message"]["content"] == "hello"  # an end token inside an answer has no text
        assert len(choice["logprobs"]["content"]) == 20


def test_stop_token_ids_end_the_answer_and_are_not_part_of_it(server: RunningServer) -> None:
    ids = server.text._encode(server.text._tokenizer, "alpha beta gamma")
    answer = server.chat("say: alpha beta gamma", stop_token_ids=[ids[-1]]).json()
    assert answer["choices"][0]["message"]["content"] == server.text.decode(ids[:-1])
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == len(ids)


def test_stop_strings_count_only_after_min_tokens(server: RunningServer) -> None:
    text = "say: alpha beta alpha beta"
    assert server.chat(text, stop="beta").json()["choices"][0]["message"]["content"] == "alpha "
    early = len(server.text._encode(server.text._tokenizer, "alpha beta"))
    answer = server.chat(text, stop="beta", min_tokens=early).json()["choices"][0]
    assert answer["message"]["content"] == "alpha beta alpha "
    assert answer["finish_reason"] == "stop"


CAT = "cat 🐈 三匹の猫 é"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("top", [None, 0, 2])
def test_logprobs_are_those_of_the_text(server: RunningServer, stream: bool, top: int | None) -> None:
    response = server.chat(f"say: {CAT}", logprobs=True, top_logprobs=top, stream=stream)
    if stream:
        choices = [chunk["choices"][0] for chunk in events(response)]
        entries = [entry for choice in choices if choice["logprobs"] for entry in choice["logprobs"]["content"]]
        for choice in choices:
            if choice["delta"].get("content"):  # each chunk has the tokens of its own text
                own = b"".join(bytes(entry["bytes"]) for entry in choice["logprobs"]["content"])
                assert own.decode() == choice["delta"]["content"]
    else:
        entries = response.json()["choices"][0]["logprobs"]["content"]
    assert b"".join(bytes(entry["bytes"]) for entry in entries).decode() == CAT
    assert all(entry["logprob"] == -0.5 and len(entry["top_logprobs"]) == (top or 0) for entry in entries)
    assert entries[0]["token"].startswith("c")
    for entry in entries:
        assert entry["token"] == bytes(entry["bytes"]).decode(errors="replace")
        if top:
            assert entry["top_logprobs"][0] == {name: entry[name] for name in ("token", "bytes", "logprob")}
            assert entry["top_logprobs"][1]["logprob"] == -2.0


def test_without_logprobs_there_are_none(server: RunningServer) -> None:
    assert server.chat().json()["choices"][0]["logprobs"] is None
    assert all(choice["logprobs"] is None for c in events(server.chat(stream=True)) for choice in c["choices"])


def test_logprobs_end_with_the_text_before_a_stop_string(server: RunningServer) -> None:
    for stop, kept in (("gamma", "alpha beta "), ("beta gam", "alpha "), ("nothing", "alpha beta gamma delta")):
        asked: dict[str, Any] = {"stop": stop, "logprobs": True}
        answer = server.chat("say: alpha beta gamma delta", **asked).json()["choices"][0]
        chunks = events(server.chat("say: alpha beta gamma delta", stream=True, **asked))
        assert answer["message"]["content"] == text_of(chunks) == kept
        streamed = [
            entry for c in chunks for choice in c["choices"] for entry in (choice["logprobs"] or {}).get("content", [])
        ]
        assert streamed == answer["logprobs"]["content"]
        written = b"".join(bytes(entry["bytes"]) for entry in streamed).decode()
        assert written.startswith(kept)
        assert not written[: -len(streamed[-1]["token"])].startswith(kept)  # no token lies entirely beyond the text


def test_openai_client_reads_logprobs(server: RunningServer) -> None:
    client = OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
    messages: Any = [{"role": "user", "content": "say: hi there"}]
    answer = client.chat.completions.create(model=MODEL, messages=messages, logprobs=True, top_logprobs=3)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert "".join(entry.token for entry in logprobs.content) == "hi there"
    assert [len(entry.top_logprobs) for entry in logprobs.content] == [3] * len(logprobs.content)
