"""Tokenizer folders as people have them, and special tokens that two messages form together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from slotdeck.engine.text.stop import StopMatcher
from slotdeck.engine.text.tokenizer import TextModel, TokenizerError
from tests.support.tokenizer_folder import make_folder

END = "<|im_end|>"
JOINING = "{% for message in messages %}{{ message['content'] | trim }}{% endfor %}"


def configured(folder: Path, **changes: Any) -> TextModel:
    make_folder(folder)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return TextModel(folder)


@pytest.mark.parametrize("place", range(1, len(END)))
def test_a_special_token_that_two_messages_form_stays_text_wherever_it_is_cut(tmp_path: Path, place: int) -> None:
    text = TextModel(make_folder(tmp_path, JOINING))
    messages = [{"role": "user", "content": part} for part in ("x " + END[:place], END[place:] + " y")]
    ids = text.encode_chat(messages)
    plain = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert plain.token_to_id(END) not in ids
    assert plain.decode(ids, skip_special_tokens=False) == f"x {END} y"


def test_a_typed_special_token_is_encoded_like_other_text(tmp_path: Path) -> None:
    """It is cut into the longest entries of the vocabulary and not into single characters."""
    text = TextModel(make_folder(tmp_path, JOINING))
    literal = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    literal.encode_special_tokens = True
    typed = "<|im_start|>"
    ids = text.encode_chat([{"role": "user", "content": typed}])
    assert ids == literal.encode(typed, add_special_tokens=False).ids
    assert len(ids) < len(typed), "the tokenizer knows longer pieces, so the case is a real one"


def test_a_folder_without_a_configuration_has_neither_template_nor_end(tmp_path: Path) -> None:
    make_folder(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    text = TextModel(tmp_path)
    assert not text.has_chat_template
    assert text.end_token_ids == frozenset()


@pytest.mark.parametrize(
    ("eos_token", "found"),
    [(END, True), ({"content": END, "special": True}, True), (None, False), ("no such token", False), (7, False)],
)
def test_the_end_of_text_as_configurations_write_it(tmp_path: Path, eos_token: Any, found: bool) -> None:
    text = configured(tmp_path, eos_token=eos_token)
    plain = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert text.end_token_ids == ({plain.token_to_id(END)} if found else set())


def test_a_configuration_that_is_no_object_counts_as_empty_and_a_broken_one_is_refused(tmp_path: Path) -> None:
    make_folder(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("[]")
    assert not TextModel(tmp_path).has_chat_template
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(TokenizerError, match=r"tokenizer_config\.json cannot be read"):
        TextModel(tmp_path)


def test_the_lower_bound_is_that_of_the_longest_token(tmp_path: Path) -> None:
    text = configured(tmp_path)
    longest = max(map(len, Tokenizer.from_file(str(tmp_path / "tokenizer.json")).get_vocab()))
    assert [text.min_num_tokens(count) for count in (0, longest - 1, longest, 3 * longest)] == [0, 0, 1, 3]


def test_of_two_stops_with_one_end_the_longer_is_cut() -> None:
    matcher = StopMatcher(["cd", "abcd"])
    assert matcher.push("xab") == "x"
    assert matcher.push("cd and more") == ""
