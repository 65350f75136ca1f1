"""The bytes of a token, for each way in which tokenizers write their vocabulary."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from slotdeck.engine.text.token_bytes import _byte_letters, bytes_reader
from slotdeck.engine.text.tokenizer import TextModel
from tests.support.tokenizer_folder import make_folder


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> TextModel:
    return TextModel(make_folder(tmp_path_factory.mktemp("tokenizer")))


def test_byte_letters_are_those_of_byte_level_tokenizers() -> None:
    letters = _byte_letters()
    assert set(letters) == set(pre_tokenizers.ByteLevel.alphabet())
    assert sorted(letters.values()) == list(range(256))


@given(st.text(max_size=30))
def test_bytes_of_tokens_join_to_the_text(text: TextModel, written: str) -> None:
    ids = text._encode(text._tokenizer, written)
    if not text._special_ids.intersection(ids):
        assert b"".join(map(text.token_bytes, ids)) == written.encode()


def test_special_and_unknown_ids(text: TextModel) -> None:
    assert [text.token_bytes(index) for index in (0, 2, 100_000)] == [b"<|endoftext|>", b"<|im_end|>", b""]


def test_sentencepiece_vocabularies_with_byte_fallback() -> None:
    read = bytes_reader({"type": "Sequence", "decoders": [{"type": "Replace"}, {"type": "ByteFallback"}]})
    assert [read(token) for token in ("▁cat", "<0xF0>", "<0xZZ>", "é")] == [b" cat", b"\xf0", b"<0xZZ>", "é".encode()]
    assert bytes_reader(None)("<0xF0>") == b"<0xF0>"
