"""The bounds of a request's fields: the last value that is accepted and the first that is refused."""

from __future__ import annotations

from typing import Any

import pytest

from slotdeck.engine.server.chat_request import ChatRequest, read_chat_request
from slotdeck.engine.server.errors import ApiError

VOCABULARY = 420
MESSAGES = [{"role": "user", "content": "hi"}]


def read(**fields: Any) -> ChatRequest:
    return read_chat_request({"messages": MESSAGES} | fields, "served", VOCABULARY)


@pytest.mark.parametrize(
    ("name", "taken", "refused"),
    [
        ("temperature", 0, -0.001),
        ("temperature", 2, 2.001),
        ("top_p", 0, -0.001),
        ("top_p", 1, 1.001),
        ("top_k", -1, -2),
        ("top_k", (1 << 31) - 1, 1 << 31),
        ("min_p", 0, -0.001),
        ("min_p", 1, 1.001),
        ("repetition_penalty", 0.01, 0.009),
        ("repetition_penalty", 10, 10.001),
        ("presence_penalty", -2, -2.001),
        ("presence_penalty", 2, 2.001),
        ("frequency_penalty", -2, -2.001),
        ("frequency_penalty", 2, 2.001),
        ("seed", -(1 << 63), -(1 << 63) - 1),
        ("seed", (1 << 63) - 1, 1 << 63),
        ("n", 1, 0),
        ("n", 16, 17),
        ("max_tokens", 1, 0),
        ("min_tokens", 0, -1),
        ("stop", "x" * 256, "x" * 257),
        ("stop", ["x"] * 4, ["x"] * 5),
        ("user", "x" * 256, "x" * 257),
        ("logit_bias", {"419": 100, "0": -100}, {"420": 1}),
        ("logit_bias", {str(number): 1 for number in range(VOCABULARY)}, {"0": 100.001}),
        ("stop_token_ids", [0, 419] * 32, [0] * 65),
        ("stop_token_ids", [419], [420]),
    ],
)
def test_the_last_allowed_value_is_accepted_and_the_next_is_refused(name: str, taken: Any, refused: Any) -> None:
    read(**{name: taken})
    with pytest.raises(ApiError) as caught:
        read(**{name: refused})
    assert (caught.value.status, caught.value.param) == (400, name)


def test_bounds_that_depend_on_another_field() -> None:
    assert read(logprobs=True, top_logprobs=20).sampling.top_logprobs == 20
    with pytest.raises(ApiError, match="between 0 and 20"):
        read(logprobs=True, top_logprobs=21)
    assert read(min_tokens=5, max_tokens=5).sampling.min_tokens == 5
    with pytest.raises(ApiError, match="at most 'max_tokens', which is 5"):
        read(min_tokens=6, max_tokens=5)


def test_1024_biases_are_accepted_and_no_more() -> None:
    biases = {str(number): 1 for number in range(1024)}
    document = {"messages": MESSAGES, "logit_bias": biases}
    assert len(read_chat_request(document, "served", 2000).sampling.logit_bias) == 1024
    biases["1024"] = 1
    with pytest.raises(ApiError, match="at most 1024"):
        read_chat_request(document, "served", 2000)


def test_values_arrive_as_given() -> None:
    chat = read(n=3, stop=["a", "b"], stream=True, stream_options={"include_usage": True}, max_completion_tokens=7)
    assert (chat.n, chat.stops, chat.stream, chat.include_usage) == (3, ("a", "b"), True, True)
    assert chat.sampling.max_tokens == 7
    assert read(max_tokens=5, max_completion_tokens=7).sampling.max_tokens == 7
    plain = read()
    assert (plain.n, plain.stops, plain.stream, plain.include_usage) == (1, (), False, False)
    assert (plain.sampling.max_tokens, plain.sampling.min_tokens, plain.sampling.top_logprobs) == (None, 0, None)
    assert read(stop="a").stops == ("a",)
    roles = [{"role": role, "content": role} for role in ("system", "developer", "user", "assistant")]
    assert [message["role"] for message in read(messages=roles).messages] == ["system", "system", "user", "assistant"]


def test_max_tokens_is_limited_by_the_context() -> None:
    ends = frozenset({2})
    assert read(max_tokens=5).sampling.params(9, ends, 0).max_tokens == 5
    assert read(max_tokens=50).sampling.params(9, ends, 0).max_tokens == 9
    assert read().sampling.params(9, ends, 0).max_tokens == 9
    assert read(seed=7).sampling.params(9, ends, 3).seed == 10
    assert read(stop_token_ids=[5]).sampling.params(9, ends, 0).stop_token_ids == {2, 5}
    assert read(stop_token_ids=[5], ignore_eos=True).sampling.params(9, ends, 0).stop_token_ids == {5}
