"""The log-probabilities of a choice belong to its text, however its tokens are split into portions."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from slotdeck.engine.core.step import TokenLogprobs
from slotdeck.engine.server.choice import Choice, Delta
from slotdeck.engine.text.tokenizer import TextModel


@pytest.fixture(scope="module")
def text(tokenizer: Path) -> TextModel:
    return TextModel(tokenizer)


def read(choice: Choice, ids: list[int], cuts: list[int], reason: str) -> list[Delta]:
    """Feed ``ids`` in portions of ``cuts`` tokens."""
    deltas = []
    left = list(ids)
    for cut in [*cuts, len(ids)]:
        portion, left = left[:cut], left[cut:]
        logprobs = [TokenLogprobs(-float(token)) for token in portion]
        deltas.append(choice.read(portion, logprobs, None if left else reason))
        if choice.ended:
            break
    return deltas


@example(ids=[287, 3], cuts=[], stops=["a"], min_tokens=0)  # the text is empty
@given(
    st.lists(st.integers(3, 419), min_size=1, max_size=30),
    st.lists(st.integers(1, 4), max_size=30),
    st.lists(st.text("abel ", min_size=1, max_size=2), max_size=2),
    st.integers(0, 10),
)
def test_logprobs_belong_to_the_tokens_whose_text_begins_before_the_end(
    text: TextModel, ids: list[int], cuts: list[int], stops: list[str], min_tokens: int
) -> None:
    choice = Choice(0, text, stops, min_tokens, frozenset())
    deltas = read(choice, ids, cuts, "length")
    shown = "".join(delta.text for delta in deltas)
    entries = [entry for delta in deltas for entry in delta.logprobs]
    assert [entry["logprob"] for entry in entries] == [-float(token) for token in ids[: len(entries)]]
    if deltas[-1].finish_reason == "length":
        assert len(entries) == len(ids) == choice.num_tokens
        assert shown == text.decode(ids)
        return
    assert deltas[-1].finish_reason == "stop"
    assert min_tokens < choice.num_tokens <= len(ids)
    assert len(entries) <= choice.num_tokens
    assert text.decode(ids[: len(entries)]).startswith(shown) or not shown
    assert len(text.decode(ids[: max(0, len(entries) - 1)])) <= len(shown) or "\ufffd" in text.decode(ids)


def test_an_ending_token_counts_but_has_no_text_and_no_logprobs(text: TextModel) -> None:
    choice = Choice(2, text, [], 0, frozenset({2}))
    (delta,) = read(choice, [50, 51, 2], [], "stop")
    assert (delta.index, delta.text, delta.finish_reason) == (2, text.decode([50, 51]), "stop")
    assert len(delta.logprobs) == 2
    assert choice.num_tokens == 3
