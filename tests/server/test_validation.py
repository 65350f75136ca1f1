"""Invalid input gets a 400 that names the field. It takes no slot and counts as invalid."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.stub_server import MODEL, RunningServer

USER = {"role": "user", "content": "hi"}
CALL = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}


def refused(server: RunningServer, status: int = 400, **fields: Any) -> dict[str, Any]:
    before = server.frame().counters
    response = server.client.post("/v1/chat/completions", json={"messages": [USER]} | fields)
    assert response.status_code == status, response.text
    after = server.frame().counters
    assert (after.invalid or 0) == (before.invalid or 0) + 1
    assert after.steps == before.steps
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return dict(error)


@pytest.mark.parametrize("messages", [[], "x", 123, None, {}])
def test_req_01_02_messages_must_be_a_list_that_is_not_empty(server: RunningServer, messages: Any) -> None:
    assert refused(server, messages=messages)["param"] == "messages"


@pytest.mark.parametrize(
    ("message", "param"),
    [
        (None, "messages[0]"),
        ("x", "messages[0]"),
        ({"content": "x"}, "messages[0].role"),
        ({"role": "robot", "content": "x"}, "messages[0].role"),
        ({"role": ["user"], "content": "x"}, "messages[0].role"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "user", "content": 5}, "messages[0].content"),
        ({"role": "assistant", "content": None}, "messages[0].content"),
        ({"role": "user", "content": ["x"]}, "messages[0].content[0]"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text"),
    ],
)
def test_req_02_each_message_is_checked(server: RunningServer, message: Any, param: str) -> None:
    assert refused(server, messages=[message])["param"] == param


def test_half_a_surrogate_pair_is_not_text(server: RunningServer) -> None:
    body = b'{"messages":[{"role":"user","content":"\\ud800"}]}'
    response = server.client.post("/v1/chat/completions", content=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "messages[0].content"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 999999),
        ("temperature", -1),
        ("temperature", True),
        ("temperature", "1"),
        ("temperature", 10**400),
        ("top_p", -1),
        ("top_p", -0.1),
        ("top_p", 1.01),
        ("top_k", -2),
        ("top_k", 1.5),
        ("top_k", False),
        ("repetition_penalty", 0),
        ("repetition_penalty", -1.5),
        ("repetition_penalty", 11),
        ("presence_penalty", 2.5),
        ("presence_penalty", True),
        ("frequency_penalty", -2.01),
        ("frequency_penalty", "1"),
        ("min_p", -0.1),
        ("min_p", 1.01),
        ("max_tokens", 0),
        ("max_tokens", -5),
        ("max_tokens", "9"),
        ("max_completion_tokens", 1.5),
        ("seed", 100000000000000000000),
        ("seed", "100"),
        ("seed", 1.0),
        ("n", 5000000),
        ("n", 17),
        ("n", 1.0),
        ("n", 0),
        ("n", True),
        ("stop", [""]),
        ("stop", ""),
        ("stop", 7),
        ("stop", ["a", 1]),
        ("stop", ["a", "b", "c", "d", "e"]),
        ("stop", ["x"] * 500_000),
        ("stop", "x" * 257),
        ("stream", "yes"),
        ("stream_options", 1),
        ("user", 5),
        ("user", "x" * 257),
        ("tools", [{"type": "function"}]),
        ("tool_choice", "required"),
        ("functions", [{}]),
        ("logprobs", 1),
        ("top_logprobs", 3),
        ("top_logprobs", 21),
        ("top_logprobs", -1),
        ("logit_bias", {"99999999": 1}),
        ("logit_bias", {"420": 1}),
        ("logit_bias", {"-1": 1}),
        ("logit_bias", {"abc": 1}),
        ("logit_bias", {"٣": 1}),
        ("logit_bias", {"01": 1}),
        ("logit_bias", {"1" * 5000: 1}),
        ("logit_bias", {"1": 1e300}),
        ("logit_bias", {"1": -100.5}),
        ("logit_bias", {"1": "5"}),
        ("logit_bias", {"1": True}),
        ("logit_bias", {"1": None}),
        ("logit_bias", {str(number): 1 for number in range(1025)}),
        ("logit_bias", [[1, 1]]),
        ("response_format", {"type": "json_object"}),
        ("echo", True),
        ("min_tokens", -1),
        ("min_tokens", 1.5),
        ("ignore_eos", 1),
        ("stop_token_ids", 5),
        ("stop_token_ids", [420]),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", ["5"]),
        ("stop_token_ids", [True]),
        ("stop_token_ids", [5] * 65),
        ("guided_json", {"type": "object"}),
        ("chat_template", "{{ x }}"),
        ("chat_template_kwargs", {"enable_thinking": False}),
        ("metadata", {"deep": [{"chat_template": "{{ x }}"}]}),
    ],
)
def test_req_04_06_07_08_10_11_17_fields_are_refused_by_name(server: RunningServer, field: str, value: Any) -> None:
    error = refused(server, **{field: value})
    assert error["param"] in (field, "chat_template")
    assert str(error["param"]) in error["message"]


def test_fields_that_contradict_each_other(server: RunningServer) -> None:
    error = refused(server, min_tokens=6, max_tokens=5)
    assert error["param"] == "min_tokens"
    assert "'max_tokens', which is 5" in error["message"]
    assert "max_completion_tokens" in refused(server, min_tokens=6, max_completion_tokens=5)["message"]
    assert refused(server, logprobs=False, top_logprobs=1)["param"] == "top_logprobs"


@pytest.mark.parametrize("field", ["logit_bias", "min_p", "repetition_penalty", "presence_penalty"])
def test_req_04_08_values_that_json_cannot_hold(server: RunningServer, field: str) -> None:
    for number in ("NaN", "-Infinity", "1e999"):
        value = f'{{"1":{number}}}' if field == "logit_bias" else number
        body = f'{{"messages":[{{"role":"user","content":"hi"}}],"{field}":{value}}}'
        assert server.client.post("/v1/chat/completions", content=body).status_code == 400


def test_stream_options_include_usage_is_a_boolean(server: RunningServer) -> None:
    error = refused(server, stream=True, stream_options={"include_usage": 1})
    assert error["param"] == "stream_options.include_usage"


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e400", "-1e400"])
def test_req_04_numbers_that_are_not_finite(server: RunningServer, number: str) -> None:
    body = f'{{"messages":[{{"role":"user","content":"hi"}}],"temperature":{number}}}'
    response = server.client.post("/v1/chat/completions", content=body)
    assert response.status_code == 400
    assert response.json()["error"]["message"]


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b'{"seed":' + b"1" * 5000 + b"}", b"{" + b'"a":' * 10]
)
def test_bodies_that_are_not_a_json_object(server: RunningServer, body: bytes) -> None:
    response = server.client.post("/v1/chat/completions", content=body)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "invalid_json"


def test_sec_09_json_nested_too_deep(server: RunningServer) -> None:
    for body in (b'{"a":' + b"[" * 100_000, b"[" * 100_000 + b"]" * 100_000):
        response = server.client.post("/v1/chat/completions", content=body)
        assert response.status_code == 400
        assert response.json()["error"]["code"] == "invalid_json"


def test_neutral_and_unknown_fields_change_nothing(server: RunningServer) -> None:
    neutral: dict[str, Any] = {
        "n": 1, "tools": [], "tool_choice": "auto", "functions": None, "logprobs": False, "top_logprobs": 0,
        "logit_bias": {}, "presence_penalty": 0, "frequency_penalty": 0.0, "repetition_penalty": 1.0,
        "response_format": {"type": "text"}, "echo": False, "stop": None, "seed": None, "temperature": None,
        "top_p": None, "top_k": 0, "max_tokens": None, "stream": None, "stream_options": None, "user": None,
        "min_p": 0, "min_tokens": 0, "ignore_eos": False, "stop_token_ids": [],
        "model": None, "chat_template": None, "session_id": "x", "metadata": {"a": 1}, "parallel_tool_calls": True,
    }  # fmt: skip
    answer = server.chat("say: hello", **neutral)
    assert answer.json()["choices"][0]["message"]["content"] == "hello"
    assert server.chat("say: hello", stop=[]).status_code == 200


@pytest.mark.parametrize("message", [CALL, {"role": "tool", "tool_call_id": "1", "content": "42"}])
def test_req_14_tool_turns_say_that_tools_are_not_supported(server: RunningServer, message: Any) -> None:
    assert "tools are not supported" in refused(server, messages=[USER, message])["message"]


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "refusal", "🐈"])
def test_req_12_sec_12_other_parts_are_named(server: RunningServer, kind: str) -> None:
    part = {"type": kind, kind: {"url": "http://169.254.169.254/"}}
    error = refused(server, messages=[{"role": "user", "content": [part]}])
    assert kind in error["message"]
    assert error["param"] == "messages[0].content[0]"


@pytest.mark.parametrize("model", ["no-such-model", "some-org/other-model", ""])
def test_req_25_mod_06_another_model_is_a_404_that_lists_the_served_one(server: RunningServer, model: str) -> None:
    error = refused(server, 404, model=model)
    assert error["code"] == "model_not_found"
    assert MODEL in error["message"]


def test_model_must_be_a_string(server: RunningServer) -> None:
    assert refused(server, model=5)["param"] == "model"
    assert refused(server, model=["default"])["param"] == "model"


def test_prompt_longer_than_the_context_names_both_numbers(server: RunningServer) -> None:
    error = refused(server, messages=[{"role": "user", "content": "alpha beta " * 400}])
    assert error["code"] == "context_length_exceeded"
    assert "512" in error["message"]
    assert any(int(word) > 511 for word in error["message"].split() if word.isdecimal())


def test_absurdly_long_text_is_refused_before_it_is_tokenized(server: RunningServer) -> None:
    error = refused(server, messages=[{"role": "user", "content": "x" * 2_000_000}])
    assert error["code"] == "context_length_exceeded"
    assert "at least" in error["message"]
    many = [{"role": "user", "content": ""}] * 5000
    assert refused(server, messages=many)["code"] == "context_length_exceeded"
