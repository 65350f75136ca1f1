"""The minutes before and after a change are compared, or reported as having too few samples."""

from __future__ import annotations

from typing import Any

import pytest

from slotdeck.console.drawing.cells import line_width, plain
from slotdeck.console.sections.comparison_table import comparison_lines
from slotdeck.console.state.comparison import Comparer, describe
from slotdeck.console.state.store import Store
from slotdeck.engine.telemetry.frame import Frame
from tests.support import frames
from tests.support.console_app import console, screen_text, seen, until

AFTER = frames.MINUTE.model_copy(
    update={"ttft_p95": 0.92, "ttft_count": 44, "itl_p95": 0.131, "itl_count": 2900, "generated_per_second": 71.0}
)


def at(seconds: float, *, preemptions: int = 0, minute: Any = frames.MINUTE, **limits: Any) -> Frame:
    counters = frames.frame().counters.model_copy(update={"preemptions": preemptions})
    settings = frames.limits_of(**({"revision": 3} | limits))
    time = frames.START + seconds
    return frames.frame(time=time, counters=counters, minute=minute, limits=settings, events=())


def table(comparer: Comparer) -> list[str]:
    assert comparer.comparison is not None
    lines = comparison_lines(comparer.comparison, 80)
    assert all(line_width(line) == 80 for line in lines)
    return [plain(line) for line in lines]


def changed(comparer: Comparer, **minute: Any) -> None:
    """A minute with two preemptions, slots 4→8, and a minute with five."""
    for second in range(60):
        comparer.add(at(second, preemptions=2 * (second > 30)))
    for second in range(60, 121):
        after = AFTER.model_copy(update=minute)
        comparer.add(at(second, preemptions=2 + 5 * (second > 90), minute=after, revision=4, slots=8))


def test_the_minute_before_and_the_minute_after_stand_side_by_side() -> None:
    comparer = Comparer()
    changed(comparer)
    assert comparer.finished is not None
    rows = [" ".join(line.split()) for line in table(comparer)]
    assert rows == [
        "± slots 4→8 60 s before and after esc closes",
        "TTFT p95 ITL p95 tok/s preempted",
        "before 1.80s n=41 96ms n=2.3k 58 2",
        "after 0.92s n=44 131ms n=2.9k 71 5",
        "change -49% +36% +22% +3",
    ]
    assert describe(comparer.finished) == (
        "slots 4→8, 60 s before and after: TTFT p95 1.80s→0.92s, ITL p95 96ms→131ms, tok/s 58→71, preempted 2→5"
    )


def test_a_preemption_at_the_beginning_of_the_minute_counts_on_its_side() -> None:
    comparer = Comparer()
    for second in range(200):
        preemptions = (second >= 41) + 10 * (second >= 101)
        revision, slots = (4, 8) if second >= 100 else (3, 4)
        comparer.add(at(second, preemptions=preemptions, revision=revision, slots=slots))
    assert comparer.comparison is not None
    after = comparer.comparison.after
    assert (comparer.comparison.before.preemptions, after and after.preemptions) == (1, 10)


@pytest.mark.parametrize("step", [2, 3, 4])
def test_preemptions_are_counted_with_frames_further_apart_than_a_second(step: int) -> None:
    """The total at the beginning of the minute is that of the last frame before it, not of the first one in it."""
    comparer = Comparer()
    for second in range(0, 120, step):
        comparer.add(at(second, preemptions=second // step))
    comparer.add(at(120, preemptions=120 // step, revision=4, slots=8))
    assert comparer.comparison is not None
    counted = comparer.comparison.before.preemptions
    assert counted == -(-60 // step), "at most one frame more than the minute"


def test_after_a_hole_of_seconds_the_minute_still_has_sixty() -> None:
    comparer = Comparer()
    times = [*range(60), *range(63, 120)]
    for total, second in enumerate(times):
        comparer.add(at(second, preemptions=total))
    comparer.add(at(120, preemptions=len(times), revision=4, slots=8))
    assert comparer.comparison is not None
    assert comparer.comparison.before.preemptions == sum(59 < second <= 119 for second in times)


def test_before_that_it_says_when_the_comparison_comes() -> None:
    comparer = Comparer()
    comparer.add(at(0))
    comparer.add(at(1, revision=4, slots=8))
    comparer.add(at(21, revision=4, slots=8))
    assert table(comparer)[0].startswith("± slots 4→8  compared in 40 s")


def test_too_little_traffic_is_reported_instead_of_guessing() -> None:
    comparer = Comparer()
    changed(comparer, ttft_p95=None, ttft_count=0, itl_p95=0.1, itl_count=12)
    text = "\n".join(table(comparer))
    assert "not enough traffic to compare: first tokens 41→0, gaps 2.3k→12" in text
    assert "%" not in text


def test_a_side_with_few_samples_gets_no_percentage() -> None:
    comparer = Comparer()
    changed(comparer, ttft_p95=0.5, ttft_count=2)
    line = table(comparer)[-1]
    assert "n < 5" in line
    assert "+36%" in line


def test_changes_within_a_minute_are_one_comparison() -> None:
    comparer = Comparer()
    comparer.add(at(0))
    comparer.add(at(1, revision=4, slots=8))
    comparer.add(at(30, revision=5, slots=8, budget=128))
    assert comparer.comparison is not None
    assert comparer.comparison.words == "slots 4→8, budget 64→128"
    assert comparer.comparison.left == 60
    assert comparer.comparison.before.ttft_count == 41


def test_a_change_undone_at_once_leaves_no_comparison() -> None:
    comparer = Comparer()
    comparer.add(at(0))
    comparer.add(at(1, revision=4, slots=8))
    comparer.add(at(5, revision=5))
    assert comparer.comparison is None


def test_after_a_hole_or_a_restart_nothing_is_compared() -> None:
    comparer = Comparer()
    comparer.add(at(0))
    comparer.add(at(30, revision=4, slots=8))
    assert comparer.comparison is None
    store = Store()
    store.apply(at(0))
    store.apply(at(1, revision=9, slots=8).model_copy(update={"boot_id": "boot-2"}))
    assert store.view.comparison is None


def test_a_finished_comparison_disappears_by_itself() -> None:
    comparer = Comparer()
    changed(comparer)
    comparer.add(at(60 + 60 + 179, revision=4, slots=8))
    assert comparer.comparison is not None
    comparer.add(at(60 + 60 + 181, revision=4, slots=8))
    assert comparer.comparison is None


async def test_the_comparison_covers_part_of_the_page_and_esc_closes_it() -> None:
    app, source = console(at(0))
    async with app.run_test(size=(80, 24)) as pilot:
        await seen(pilot, "slots 3/4")
        source.give(at(1, revision=4, slots=8))
        await seen(pilot, "slots 4→8  compared in 60 s")
        source.give(at(61, revision=4, slots=8, minute=AFTER))
        await seen(pilot, "change     -49%")
        await seen(pilot, "● decode")
        await pilot.press("escape")
        await until(pilot, lambda: "change" not in screen_text(app))
        source.give(at(62, revision=4, slots=8, minute=AFTER))
        await pilot.pause(0.4)
        assert "change" not in screen_text(app)
        assert any(entry.kind == "compared" for entry in app.services.session.store.view.events)
