"""Reads the body of a chat request. A field that would change the answer is either honoured or refused by name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from slotdeck.engine.server.errors import ApiError, invalid, unsupported
from slotdeck.engine.server.fields import boolean, integer
from slotdeck.engine.server.sampling_fields import SamplingFields, read_sampling
from slotdeck.engine.text.template import Message

MAX_STOPS = 4
MAX_STOP = 256
MAX_USER = 256
MAX_CHOICES = 16

_TEMPLATE_KEYS = ("chat_template", "chat_template_kwargs")
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}

# Unsupported fields, each with the values that change nothing and so are accepted. null always is.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "prompt_logprobs": (False,),
    "response_format": ({"type": "text"},),
    "repeat_penalty": (1,),
    "length_penalty": (1,),
    "typical_p": (1,),
    "echo": (False,),
    "best_of": (1,),
    "use_beam_search": (False,),
    "suffix": ("",),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
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
    """A valid chat request."""

    messages: tuple[Message, ...]
    sampling: SamplingFields
    n: int
    """Number of choices, 1 to MAX_CHOICES."""
    stops: tuple[str, ...]
    stream: bool
    include_usage: bool


def read_json(body: bytes | bytearray) -> dict[str, Any]:
    """Parse ``body`` as a JSON object. Raises ApiError 400, also for NaN and Infinity, which are not JSON."""

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


def read_chat_request(document: dict[str, Any], model_id: str, vocabulary: int) -> ChatRequest:
    """Validate a body for ``POST /v1/chat/completions``. Raises ApiError: 404 for another model, otherwise 400.

    ``vocabulary`` is the number of token ids that the model has.
    """
    _refuse_templates(document)
    check_model(document.get("model"), model_id)
    for name, neutral in _NEUTRAL.items():
        value = document.get(name)
        if value is not None and not any(_same(value, item) for item in neutral):
            hint = " other than 'text'" if name == "response_format" else ""
            raise unsupported(name, hint)
    user = document.get("user")
    if user is not None and (not isinstance(user, str) or len(user) > MAX_USER):
        raise invalid("user", f"'user' must be a string of at most {MAX_USER} characters")
    stream_options = document.get("stream_options")
    if stream_options is not None and not isinstance(stream_options, dict):
        raise invalid("stream_options", "'stream_options' must be an object")
    return ChatRequest(
        messages=tuple(_messages(document.get("messages"))),
        sampling=read_sampling(document, vocabulary),
        n=integer(document, "n", 1, MAX_CHOICES) or 1,
        stops=tuple(_stops(document.get("stop"))),
        stream=boolean(document, "stream"),
        include_usage=boolean(stream_options or {}, "include_usage", "stream_options.include_usage"),
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
                    raise invalid(key, f"'{key}' is not accepted: only the operator can choose the chat template")
            pending.extend(item.values())
        elif isinstance(item, list):
            pending.extend(item)


def _same(value: Any, neutral: Any) -> bool:
    """Whether both are equal. A boolean never equals a number."""
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
        rule = "this server accepts only text parts"
        raise invalid(name, f"'{name}' is a part {shown}: {rule}", logged=f"'{name}' is not text: {rule}")
    if not isinstance(part.get("text"), str):
        raise invalid(f"{name}.text", f"'{name}.text' must be a string")
    return str(part["text"])


def _text(value: str, name: str) -> str:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise invalid(name, f"'{name}' contains half of a surrogate pair, which is not text") from None
    return value


def _stops(value: Any) -> Iterator[str]:
    stops = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or len(stops) > MAX_STOPS:
        raise invalid("stop", f"'stop' must be a string or a list of at most {MAX_STOPS} strings")
    for stop in stops:
        if not isinstance(stop, str) or not 1 <= len(stop) <= MAX_STOP:
            raise invalid("stop", f"each string in 'stop' must have 1 to {MAX_STOP} characters")
        yield _text(stop, "stop")
