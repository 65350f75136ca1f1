"""Detokenizing and finding stop strings, with the text split anywhere."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotdeck.engine.text.detokenizer import Detokenizer
from slotdeck.engine.text.stop import StopMatcher
from slotdeck.engine.text.tokenizer import TextModel
from tests.support.tokenizer_folder import make_folder


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> TextModel:
    return TextModel(make_folder(tmp_path_factory.mktemp("tokenizer")))


def test_txt_01_no_half_character_ever_appears(text: TextModel) -> None:
    answer = "cat 🐈 and 三匹の猫, é\u0301 done"
    ids = text._encode(text._tokenizer, answer)
    detokenizer = Detokenizer(text)
    pieces = [detokenizer.push(index) for index in ids]
    assert "".join(pieces) + detokenizer.flush() == answer
    assert not any("\ufffd" in piece for piece in pieces)
    assert "" in pieces  # something was really held back


def test_txt_01_an_answer_cut_inside_a_character_is_flushed(text: TextModel) -> None:
    ids = text._encode(text._tokenizer, "ok 🐈")[:-1]
    detokenizer = Detokenizer(text)
    streamed = "".join(map(detokenizer.push, ids))
    assert streamed == "ok "
    assert streamed + detokenizer.flush() == text.decode(ids)
    assert detokenizer.flush() == ""


def test_txt_01_bytes_that_never_become_a_character_are_held_back_three_at_a_time(text: TextModel) -> None:
    (continuation,) = (index for index in range(420) if text.token_bytes(index) == b"\x80")
    detokenizer = Detokenizer(text)
    assert [detokenizer.push(continuation) for _ in range(5)] == ["", "", "", "\ufffd", "\ufffd"]
    assert detokenizer.flush() == "\ufffd" * 3


class Words:
    """Decodes like tokenizers that put a space between two words but not before the first."""

    def decode(self, ids: list[int]) -> str:
        return " ".join(f"w{index}" for index in ids)


def test_txt_01_the_space_before_a_word_depends_on_the_word_before() -> None:
    detokenizer = Detokenizer(Words())  # type: ignore[arg-type]
    assert [detokenizer.push(index) for index in range(4)] == ["w0", " w1", " w2", " w3"]
    assert detokenizer.flush() == ""


@given(st.lists(st.integers(0, 419), max_size=60))
def test_txt_01_the_joined_stream_is_the_whole_text(text: TextModel, ids: list[int]) -> None:
    detokenizer = Detokenizer(text)
    assert "".join(map(detokenizer.push, ids)) + detokenizer.flush() == text.decode(ids)


def feed(stops: list[str], chunks: list[str]) -> tuple[str, StopMatcher]:
    matcher = StopMatcher(stops)
    shown = "".join(map(matcher.push, chunks))
    return shown + matcher.flush(), matcher


def test_txt_02_a_stop_string_that_spans_tokens_is_never_shown() -> None:
    matcher = StopMatcher(["beta gamma"])
    shown = [matcher.push(chunk) for chunk in ("alpha", " be", "ta", " gam", "ma", " delta")]
    assert shown == ["alpha", " ", "", "", "", ""]
    assert matcher.matched


def test_txt_02_text_that_cannot_become_a_stop_is_not_held_back() -> None:
    matcher = StopMatcher(["END"])
    assert [matcher.push(chunk) for chunk in ("E", "N", "x", "EN")] == ["", "", "ENx", ""]
    assert matcher.flush() == "EN"


@pytest.mark.parametrize(
    ("stops", "text", "shown"),
    [
        (["abcd", "b"], "xabcd", "xa"),  # the one that ends first, not the one that begins first
        (["b", "abcd"], "xabcd", "xa"),
        (["bc", "abc"], "xabc", "x"),  # both end at once: the text ends before the longer one
        (["c", "abc"], "xabc", "x"),
        (["ab", "b"], "ab", ""),
        (["ab"], "abab", ""),
    ],
)
def test_txt_02_of_several_stops_the_one_that_is_complete_first_ends_the_text(
    stops: list[str], text: str, shown: str
) -> None:
    """Whether the text comes in one piece or letter by letter."""
    for chunks in ([text], list(text)):
        assert feed(stops, chunks)[0] == shown


def test_txt_02_after_a_match_nothing_comes_out() -> None:
    matcher = StopMatcher(["b"])
    assert [matcher.push("ab"), matcher.push("a"), matcher.flush()] == ["a", "", ""]


def test_txt_02_without_stops_everything_passes_at_once() -> None:
    assert StopMatcher([]).push("abc") == StopMatcher([""]).push("abc") == "abc"


@given(
    st.lists(st.text("abc", min_size=1, max_size=4), max_size=4),
    st.lists(st.text("abc", max_size=3), max_size=20),
)
def test_txt_02_the_text_ends_before_the_first_complete_stop(stops: list[str], chunks: list[str]) -> None:
    whole = "".join(chunks)
    shown, matcher = feed(stops, chunks)
    ends = [(whole.find(stop) + len(stop), whole.find(stop)) for stop in stops if stop in whole]
    assert matcher.matched == bool(ends)
    assert shown == (whole[: min(start for end, start in ends if end == min(ends)[0])] if ends else whole)
