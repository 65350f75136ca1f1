"""One answer, read in any portions: its log-probabilities belong to its text."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotdeck.engine.core.request import TokenLogprobs
from slotdeck.engine.server.answer import Answer, Piece
from slotdeck.engine.text.tokenizer import TextModel


@pytest.fixture(scope="module")
def text(tokenizer: Path) -> TextModel:
    return TextModel(tokenizer)


def read(answer: Answer, ids: list[int], cuts: list[int], reason: str) -> list[Piece]:
    """Feed ``ids`` in portions of ``cuts`` tokens."""
    pieces = []
    left = list(ids)
    for cut in [*cuts, len(ids)]:
        portion, left = left[:cut], left[cut:]
        logprobs = [TokenLogprobs(-float(token)) for token in portion]
        pieces.append(answer.read(portion, logprobs, None if left else reason))
        if answer.ended:
            break
    return pieces


@given(
    st.lists(st.integers(3, 419), min_size=1, max_size=30),
    st.lists(st.integers(1, 4), max_size=30),
    st.lists(st.text("abel ", min_size=1, max_size=2), max_size=2),
    st.integers(0, 10),
)
def test_entries_are_the_tokens_whose_text_begins_before_the_end(
    text: TextModel, ids: list[int], cuts: list[int], stops: list[str], min_tokens: int
) -> None:
    answer = Answer(0, text, stops, min_tokens, frozenset())
    pieces = read(answer, ids, cuts, "length")
    shown = "".join(piece.text for piece in pieces)
    entries = [entry for piece in pieces for entry in piece.logprobs]
    assert [entry["logprob"] for entry in entries] == [-float(token) for token in ids[: len(entries)]]
    if pieces[-1].finish_reason == "length":
        assert len(entries) == len(ids) == answer.num_tokens
        assert shown == text.decode(ids)
        return
    assert pieces[-1].finish_reason == "stop"
    assert min_tokens < answer.num_tokens <= len(ids)
    assert len(entries) <= answer.num_tokens
    assert text.decode(ids[: len(entries)]).startswith(shown) or not shown
    assert len(text.decode(ids[: len(entries) - 1])) <= len(shown) or "\ufffd" in text.decode(ids)


def test_an_ending_token_counts_and_has_neither_text_nor_entry(text: TextModel) -> None:
    answer = Answer(2, text, [], 0, frozenset({2}))
    (piece,) = read(answer, [50, 51, 2], [], "stop")
    assert (piece.choice, piece.text, piece.finish_reason) == (2, text.decode([50, 51]), "stop")
    assert len(piece.logprobs) == 2
    assert answer.num_tokens == 3
