"""A chat request's body, read strictly: every field that would change the answer is honoured or refused by name."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from engine.server.errors import ApiError, invalid, unsupported
from engine.text.template import Message

MOST_STOPS = 4
LONGEST_STOP = 256
LONGEST_USER = 256

_TEMPLATE_KEYS = ("chat_template", "chat_template_kwargs")
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_SEED_MASK = (1 << 63) - 1

# What each unsupported field may hold because it then changes nothing; null always does.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "prompt_logprobs": (False,),
    "response_format": ({"type": "text"},),
    "logit_bias": ({},),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "repeat_penalty": (1,),
    "length_penalty": (1,),
    "min_p": (0,),
    "typical_p": (1,),
    "echo": (False,),
    "best_of": (1,),
    "use_beam_search": (False,),
    "suffix": ("",),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
    "ignore_eos": (False,),
    "min_tokens": (0,),
    "stop_token_ids": ([],),
    "bad_words": ([],),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "grammar": ("",),
    "json_schema": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "structured_outputs": (),
}


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """What a valid body asks for."""

    messages: tuple[Message, ...]
    max_tokens: int | None
    """``None``: as many as the context leaves."""
    temperature: float
    top_p: float
    top_k: int
    seed: int
    """Non-negative; drawn at random when the client gave none."""
    stops: tuple[str, ...]
    stream: bool
    include_usage: bool


def read_json(body: bytes) -> dict[str, Any]:
    """The body as a JSON object. Raises ApiError 400; NaN and Infinity are not JSON."""

    def refuse(name: str) -> None:
        raise ValueError(f"{name} is not JSON")

    try:
        document = json.loads(body, parse_constant=refuse)
    except RecursionError:
        raise invalid(None, "the body is nested too deeply", code="invalid_json") from None
    except ValueError as error:
        place = f" at line {error.lineno}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else ""
        raise invalid(None, f"the body is not valid JSON{place}", code="invalid_json") from None
    if not isinstance(document, dict):
        raise invalid(None, "the body must be a JSON object", code="invalid_json")
    return document


def read_chat_request(document: dict[str, Any], model_id: str) -> ChatRequest:
    """Validate a body for ``POST /v1/chat/completions``. Raises ApiError: 404 for another model, else 400."""
    _refuse_templates(document)
    check_model(document.get("model"), model_id)
    n = document.get("n")
    if n is not None and (type(n) is not int or n != 1):
        raise invalid("n", "'n' must be 1: several answers to one request are not supported yet")
    for name, neutral in _NEUTRAL.items():
        value = document.get(name)
        if value is not None and not any(_same(value, item) for item in neutral):
            hint = " other than 'text'" if name == "response_format" else ""
            raise unsupported(name, hint)
    user = document.get("user")
    if user is not None and (not isinstance(user, str) or len(user) > LONGEST_USER):
        raise invalid("user", f"'user' must be a string of at most {LONGEST_USER} characters")
    alias = "max_tokens" if document.get("max_completion_tokens") is None else "max_completion_tokens"
    seed = _integer(document, "seed", -(1 << 63), (1 << 63) - 1)
    stream_options = document.get("stream_options")
    if stream_options is not None and not isinstance(stream_options, dict):
        raise invalid("stream_options", "'stream_options' must be an object")
    temperature = _number(document, "temperature", 0, 2)
    top_p = _number(document, "top_p", 0, 1)
    if top_p == 0:
        raise invalid("top_p", "'top_p' must be above 0 and at most 1")
    return ChatRequest(
        messages=tuple(_messages(document.get("messages"))),
        max_tokens=_integer(document, alias, 1, None),
        temperature=1.0 if temperature is None else temperature,
        top_p=1.0 if top_p is None else top_p,
        top_k=_integer(document, "top_k", 0, (1 << 31) - 1) or 0,
        seed=secrets.randbits(63) if seed is None else seed & _SEED_MASK,
        stops=tuple(_stops(document.get("stop"))),
        stream=_boolean(document, "stream", "stream"),
        include_usage=_boolean(stream_options or {}, "include_usage", "stream_options.include_usage"),
    )


def check_model(given: Any, model_id: str) -> None:
    """Raise ApiError unless ``given`` is absent, ``default`` or the id of the served model."""
    if given is None or given in ("default", model_id):
        return
    if not isinstance(given, str):
        raise invalid("model", "'model' must be a string")
    raise ApiError(404, f"this server has no such model; it serves {model_id!r}", param="model", code="model_not_found")


def _refuse_templates(document: Any) -> None:
    pending = [document]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            for key in _TEMPLATE_KEYS:
                if item.get(key) is not None:
                    raise invalid(key, f"'{key}' is not accepted: the template comes from the operator alone")
            pending.extend(item.values())
        elif isinstance(item, list):
            pending.extend(item)


def _same(value: Any, neutral: Any) -> bool:
    """Equal, where a boolean is not a number."""
    return isinstance(value, bool) == isinstance(neutral, bool) and bool(value == neutral)


def _messages(value: Any) -> Iterator[Message]:
    if not isinstance(value, list) or not value:
        raise invalid("messages", "'messages' must be a list with at least one message")
    for index, message in enumerate(value):
        name = f"messages[{index}]"
        if not isinstance(message, dict):
            raise invalid(name, f"'{name}' must be an object with 'role' and 'content'")
        role = message.get("role")
        if role in ("tool", "function") or message.get("tool_calls") or message.get("function_call"):
            raise invalid(name, f"'{name}': tools are not supported by this server", code="unsupported_parameter")
        if not isinstance(role, str) or role not in _ROLES:
            raise invalid(f"{name}.role", f"'{name}.role' must be one of {', '.join(_ROLES)}")
        yield {"role": _ROLES[role], "content": _content(message.get("content"), f"{name}.content")}


def _content(value: Any, name: str) -> str:
    if isinstance(value, list):
        value = "".join(_part(part, f"{name}[{index}]") for index, part in enumerate(value))
    if not isinstance(value, str):
        raise invalid(name, f"'{name}' must be a string or a list of text parts")
    return _text(value, name)


def _part(part: Any, name: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind != "text":
        shown = f"of type '{kind[:40]}'" if isinstance(kind, str) else "without a type"
        raise invalid(name, f"'{name}' is a part {shown}: this server takes text parts only")
    if not isinstance(part.get("text"), str):
        raise invalid(f"{name}.text", f"'{name}.text' must be a string")
    return str(part["text"])


def _text(value: str, name: str) -> str:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise invalid(name, f"'{name}' holds half of a surrogate pair, which is not text") from None
    return value


def _stops(value: Any) -> Iterator[str]:
    stops = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or len(stops) > MOST_STOPS:
        raise invalid("stop", f"'stop' must be a string or a list of at most {MOST_STOPS} strings")
    for stop in stops:
        if not isinstance(stop, str) or not 1 <= len(stop) <= LONGEST_STOP:
            raise invalid("stop", f"each string in 'stop' must have 1 to {LONGEST_STOP} characters")
        yield _text(stop, "stop")


def _boolean(document: dict[str, Any], key: str, name: str) -> bool:
    value = document.get(key)
    if value is not None and not isinstance(value, bool):
        raise invalid(name, f"'{name}' must be true or false")
    return bool(value)


def _integer(document: dict[str, Any], name: str, least: int, most: int | None) -> int | None:
    value = document.get(name)
    if value is None:
        return None
    allowed = f"an integer of at least {least}" if most is None else f"an integer between {least} and {most}"
    if type(value) is not int or value < least or (most is not None and value > most):
        raise invalid(name, f"'{name}' must be {allowed}")
    return value


def _number(document: dict[str, Any], name: str, least: int, most: int) -> float | None:
    """A finite number in range. JSON's 1e400 reads as infinity and fails the comparison like any other."""
    value = document.get(name)
    if value is None:
        return None
    if type(value) not in (int, float) or not least <= value <= most:
        raise invalid(name, f"'{name}' must be a number between {least} and {most}")
    return float(value)
