"""What the numbers of a row become: sentences, lines of an exact width, and `–` for what is not known."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from slotdeck.console.demo.export import as_json, from_json
from slotdeck.console.demo.lines import plot_block, progress_line, report_lines, row_line, table_lines
from slotdeck.console.demo.result import CallResult
from slotdeck.console.demo.rows import Call, Mode, Row, usual_rows
from slotdeck.console.demo.run import Demo
from slotdeck.console.demo.scenes import scene_rows
from slotdeck.console.demo.sentences import comparison, sentence
from slotdeck.console.drawing.cells import line_width, plain
from tests.support.demo import made, result


@pytest.mark.parametrize(
    ("mode", "values", "words"),
    [
        ("serial", {}, "half of 8 waited 100 ms or more for their turn, the longest up to 1.10 s; then a token"),
        ("serial", {"wait_max": 0.01}, "nobody waited longer than 10 ms"),
        ("static", {"held_share": 0.34}, "held 34% of the slots until the longest of their batch ended"),
        ("static", {"open": 2}, "Who came while a batch ran waited at least 1.10 s for its end"),
        ("continuous", {}, "All 4 slots were taken at times, and who came then waited up to 1.10 s"),
        ("continuous", {"most_running": 2}, "Up to 2 ran at once and nobody waited longer than 1.10 s"),
        ("continuous", {"wait_max": 0.0}, "Up to 4 ran at once and nobody waited longer than 0 ms"),
        ("continuous", {"rejected": 3}, "; 3 requests were refused with 503, since 16 already waited."),
        ("continuous", {"preemptions": 1, "recomputed_tokens": 90}, "ran out once: 90 tokens were computed again"),
        ("continuous", {"requests": 0}, "Nobody asked anything within 20 s: people read"),
        ("continuous", {"ttft_count": 0, "rejected": 8}, "All 8 requests were refused with 503."),
        ("continuous", {"ttft_count": 0, "last_error": "oops"}, "None of 8 requests had a first word"),
    ],
)  # fmt: skip
def test_a_sentence_is_made_of_the_numbers(mode: Mode, values: dict[str, object], words: str) -> None:
    row = Row("5 agents", mode, 5, mode, 20.0, who="agent")
    assert words in sentence(row, result(**values))


def scene_sentence(name: str, act: int, roles: dict[str, list[CallResult]], **values: object) -> str:
    row = scene_rows(name, {"slots": 4, "context": 2048, "kv_tokens": 8192, "queue": 16}, 8192)[act]
    return sentence(row, result(calls=[call for calls in roles.values() for call in calls], **values))


def test_scenes_tell_what_became_of_each() -> None:
    short = [CallResult("short", 0.0, ttft=0.1, seconds=seconds, tokens=30) for seconds in (1.0, 2.0, 3.0)]
    long = [CallResult("long", 0.0, ttft=0.1, seconds=9.0, longest_gap=0.4, tokens=600)]
    newcomer = [CallResult("newcomer", 2.0, ttft=7.1, seconds=8.0)]
    calls = {"short": short, "long": long, "newcomer": newcomer}
    assert scene_sentence("slowest", 0, calls) == (
        "The short answers were done after 1.00 s to 3.00 s and held their slots while the long one ran, for 9.00 s; "
        "who came after 2 s had the first word 7.10 s later."
    )
    late = [CallResult("short", 1.0, open=28.0)]
    text = scene_sentence("blocked", 0, {"long": [dataclasses.replace(long[0], seconds=None)], "short": late})
    assert "600 tokens ran beyond the end of the act; the four who came a second later had their first word" in text
    assert text.endswith("after ≥ 28.00 s to 28.00 s.")
    readers = {"reader": [CallResult("reader", 0.0, ttft=0.1, longest_gap=1.3)], "newcomer": newcomer}
    assert "2000 tokens were read in one step, those" in scene_sentence("stutter", 0, readers, budget=8192)
    assert "in pieces of 64, those who watched text stream saw it stand still for up to 1.30 s" in scene_sentence(
        "stutter", 1, readers, budget=64
    )


def test_a_slow_machine_is_asked_for_no_step_and_no_answer_that_takes_too_long() -> None:
    demo = Demo(
        Path("engine.sock"), lambda _settings, _trained: [], seed=1, on_event=lambda _event: None, recording=None
    )
    changes = {"budget": 8192, "slots": 4}
    assert demo._limited(changes) == changes  # before the warm-up
    demo._prefill_speed, demo._decode_speed = 30.0, 6.0
    assert demo._limited(changes) == {"budget": 150, "slots": 4}
    assert demo._limited({"budget": 64}) == {"budget": 64}
    assert demo._answer_tokens(Call(0, 0, 40, 600)) == 90
    assert demo._answer_tokens(Call(0, 0, 40, 30)) == 30


def test_two_modes_are_compared() -> None:
    rows = usual_rows((5,), ("agent",), ("serial", "continuous"), 20)
    text = comparison(rows, [result(tokens_per_second=30.5, ttft_p95=9.0, open=1), result()])
    assert text == (
        "continuous beside serial: 2.0 times the tokens/s, first words after 1.20 s instead of ≥ 9.00 s, "
        "a token every 30 ms instead of 30 ms (p95)"
    )
    assert comparison(rows, [result(), None]) is None


@pytest.mark.parametrize("cells", [60, 80, 100, 143])
@pytest.mark.parametrize("ended", [False, True])
def test_every_line_is_as_wide_as_asked(cells: int, ended: bool) -> None:
    state = made(ended=ended)
    lines = [
        progress_line(state, cells),
        *plot_block(state, 1, cells),
        *table_lines(state, cells, 6, 1),
        *report_lines(state, cells),
    ]
    assert {line_width(line) for line in lines} == {cells}


def test_time_left_and_share_add_up() -> None:
    state = made(ended=False)
    assert state.seconds_left == pytest.approx(13 + 2 + 4 * 22)
    assert state.share_done == pytest.approx((22 + 7) / (6 * 22))
    assert "row 2 of 6  01:43 left" in plain(progress_line(state, 80))
    assert made(ended=True).seconds_left == 0


def test_what_is_not_known_is_a_dash_and_a_lower_bound_is_marked() -> None:
    state = made(ended=False)
    assert plain(row_line(state, 5, 80)).split() == ["continuous", *["–"] * 10]
    assert "≥1.20s" in plain(row_line(state, 1, 80))
    shown = [plain(line) for line in table_lines(state, 80, 4, 5)]
    assert len(shown) == 4
    assert shown[-1].startswith(" › continuous")


def test_a_report_in_json_is_the_whole_demonstration() -> None:
    state = made(ended=True)
    document = json.loads(json.dumps(as_json(state, 1)))
    again = from_json(document)
    assert (again.rows, again.results, again.samples) == (state.rows, state.results, state.samples)
    assert again.ended == "done"
