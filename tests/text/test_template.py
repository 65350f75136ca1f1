"""Chat templates are rendered as transformers renders them, and cannot reach beyond their sandbox."""

from __future__ import annotations

from datetime import datetime

import pytest

from slotdeck.engine.text.template import ChatTemplateError, compile_template

MESSAGES = [{"role": "user", "content": "hé"}, {"role": "assistant", "content": "yes"}]


def render(source: str, **special_tokens: str) -> str:
    return compile_template(source, special_tokens)(MESSAGES)


def test_blocks_leave_neither_their_line_nor_their_indentation() -> None:
    source = "{% for message in messages %}\n    {% if true %}\n{{ message['role'] }}\n    {% endif %}\n{% endfor %}"
    assert render(source) == "user\nassistant\n"


def test_what_a_template_is_given() -> None:
    assert render("{{ bos_token }}{{ eos_token }}", bos_token="<s>", eos_token="</s>") == "<s></s>"
    assert render("{{ add_generation_prompt }} {{ tools }} {{ documents }}") == "True None None"
    assert render("{{ strftime_now('%Y') }}") == str(datetime.now().year)


def test_json_is_written_as_it_is() -> None:
    assert render("{{ messages[0] | tojson }}") == '{"role": "user", "content": "hé"}'
    assert render("{{ [1] | tojson(indent=1) }}") == "[\n 1\n]"


def test_loops_can_be_left_and_marks_of_training_are_ignored() -> None:
    assert render("{% for message in messages %}{{ message.role }}{% break %}{% endfor %}") == "user"
    assert render("{% generation %}{{ messages[1].content }}{% endgeneration %}!") == "yes!"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ raise_exception('roles must alternate') }}", "^roles must alternate$"),
        ("{{ messages[5].content.upper() }}", "refused these messages: "),
        ("{{ 1 / 0 }}", "refused these messages: "),
        ("{{ 'x' + 1 }}", "refused these messages: "),
        ("{{ messages.append(1) }}", "refused these messages: "),
        ("{{ messages.__class__.__mro__ }}", "refused these messages: "),
    ],
)
def test_a_refusal_says_why(source: str, reason: str) -> None:
    with pytest.raises(ChatTemplateError, match=reason):
        render(source)


def test_bad_syntax_is_noticed_before_any_message() -> None:
    with pytest.raises(ChatTemplateError, match="does not compile: "):
        compile_template("{% if %}", {})
