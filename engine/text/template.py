"""The operator's chat template, rendered in a sandbox.

A template comes only from the model's folder, never from a request. It is rendered the way Hugging Face models
expect (same environment options, globals and special token names), without importing transformers.
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
    """The template refused the conversation; the message is the template's own sentence."""


class _Generation(Extension):
    """``{% generation %}`` marks assistant text for training; for serving it is only its body."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> None:
    raise ChatTemplateError(str(message))


def _tojson(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def compile_template(source: str, special_tokens: Mapping[str, str]) -> Callable[[Sequence[Message]], str]:
    """Compile ``source``; the result renders messages and asks for an assistant turn.

    ``special_tokens`` are names the template may use (``bos_token``, ``eos_token``, …). Compiling raises
    ChatTemplateError for bad syntax, rendering raises it for whatever the template refuses.
    """
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)  # local time, as written
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
