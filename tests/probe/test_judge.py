"""What streams say: verdicts from times alone."""

from __future__ import annotations

import pytest

from slotdeck.console.probe.cut import LongPrompt, judge, sizes
from slotdeck.console.probe.judge import Stream, count_slots, judge_pair

ALONE = [Stream(0.1, 1.1, 51), Stream(0.1, 2.1, 101)]
"""50 tokens a second."""


def test_the_second_prints_nothing_until_the_first_is_done() -> None:
    pair = judge_pair(ALONE, [Stream(2.2, 4.2, 101), Stream(0.1, 2.1, 101)])
    assert (pair.verdict, pair.firsts, pair.lasts) == ("queued", (0.1, 2.2), (2.1, 4.2))
    assert pair.alone_rate == pytest.approx(50)


def test_both_run_and_together_faster_than_one_alone() -> None:
    pair = judge_pair(ALONE, [Stream(0.1, 2.6, 101), Stream(0.2, 2.7, 101)])
    assert pair.verdict == "batched"
    assert pair.gain == pytest.approx(1.6)


def test_both_run_at_half_the_speed() -> None:
    pair = judge_pair(ALONE, [Stream(0.1, 4.1, 101), Stream(0.2, 4.2, 101)])
    assert pair.verdict == "sharing bandwidth"
    assert pair.gain == pytest.approx(1.0)


@pytest.mark.parametrize(
    "pair",
    [
        [],
        [Stream(0.1, 2.1, 101)],
        [Stream(0.1, 2.1, 101), Stream(1.9, 4.0, 101)],
    ],
)
def test_what_cannot_be_told_is_not_told(pair: list[Stream]) -> None:
    assert judge_pair(ALONE, pair).verdict == "unclear"
    assert judge_pair([], ALONE).verdict == "unclear"


@pytest.mark.parametrize(
    ("ends", "verdict"), [((2.0, 4.0), "queued"), ((2.4, 2.5), "batched"), ((3.9, 4.0), "sharing bandwidth")]
)
def test_texts_held_back_by_a_proxy_are_judged_by_their_ends(ends: tuple[float, float], verdict: str) -> None:
    alone = [Stream(2.0, 2.0, 100)] * 2
    pair = judge_pair(alone, [Stream(end, end, 100) for end in ends])
    assert (pair.verdict, pair.buffered) == (verdict, True)


def test_slots_are_the_most_that_were_written_at_once() -> None:
    waves = [Stream(wave + 0.1, wave + 0.9, 50) for wave in (0.0, 1.0) for _ in range(4)]
    slots = count_slots(8, waves, 0, 0)
    assert (slots.at_once, slots.later, slots.wait, slots.at_least) == (4, 4, 1.1, False)
    assert count_slots(4, waves[:4], 0, 0).at_least
    assert not count_slots(8, waves[:4], 4, 0).at_least
    assert count_slots(8, [], 8, 0).at_once is None
    assert count_slots(2, waves[:2], 0, 0, buffered=True).at_once is None


def test_prompts_go_to_both_sides_of_a_known_context_or_double() -> None:
    assert sizes(2048, 8192) == [1024, 2560]
    assert sizes(None, 8192) == [1024, 2048, 4096, 8192]
    assert sizes(131_072, 4096) == [1024, 2048, 4096]


@pytest.mark.parametrize(
    ("prompt", "verdict"),
    [
        (LongPrompt(1000, counted=995), "read whole"),
        (LongPrompt(5000, counted=2048, repeated=True), "cut silently"),
        (LongPrompt(5000, status=400, reason="too long"), "refused"),
        (LongPrompt(5000, status=500, reason="oops"), "unclear"),
        (LongPrompt(5000, repeated=False), "cut silently"),
        (LongPrompt(5000, repeated=True), "read whole"),
        (LongPrompt(5000), "unclear"),
    ],
)
def test_a_long_prompt(prompt: LongPrompt, verdict: str) -> None:
    assert judge(prompt) == verdict
