"""Renders the chat template of a model in a sandbox.

A template comes from the folder of the model, never from a request. It is rendered as Hugging Face models expect, with
the same options, globals and names of special tokens, but without importing transformers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

Message = dict[str, str]
"""``{"role": "system" | "user" | "assistant", "content": text}``"""


class ChatTemplateError(ValueError):
    """The template refused the conversation, or does not compile. The message may be the template's own."""


class _Generation(Extension):
    """Renders ``{% generation %}``, which marks assistant text for training, as its body alone."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> None:
    raise ChatTemplateError(str(message))


def _tojson(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def compile_template(source: str, special_tokens: Mapping[str, str]) -> Callable[[Sequence[Message]], str]:
    """Compile ``source``. The result renders messages into a prompt for the assistant's turn.

    ``special_tokens`` are the names that the template may use (``bos_token``, ``eos_token``, …). Raises
    ChatTemplateError for bad syntax. The result raises it for messages that the template refuses.
    """
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(
        pattern
    )  # local time, as templates expect
    try:
        template = environment.from_string(source)
    except TemplateError as error:
        raise ChatTemplateError(f"the model's chat template does not compile: {error}") from error

    def render(messages: Sequence[Message]) -> str:
        try:
            return template.render(
                messages=messages, tools=None, documents=None, add_generation_prompt=True, **special_tokens
            )
        except ChatTemplateError:
            raise
        except (TemplateError, TypeError, ValueError, KeyError, IndexError, ArithmeticError) as error:
            raise ChatTemplateError(f"the model's chat template refused these messages: {error}") from error

    return render
