"""The History page over a real history file: stepping, jumping, days and playing."""

from __future__ import annotations

import pytest
from textual.pilot import Pilot

from slotdeck.console.app import ConsoleApp
from slotdeck.console.pages.history import HistoryPage
from slotdeck.console.sources.recording import read_frames
from slotdeck.engine.paths import history_path, state_folder
from slotdeck.engine.telemetry.frame import Frame
from tests.support import frames
from tests.support.console_app import console, screen_text, seen, until
from tests.support.history import record

SIZE = (80, 24)
DAY = 86_400


def evening() -> list[Frame]:
    """40 seconds of yesterday: a preemption at second 12, a setting turned at 25; then 20 seconds of today."""
    seconds = []
    for i in range(60):
        situation = frames.preempting() if 12 <= i < 20 else frames.steady()
        events = ()
        if i == 12:
            events = (frames.event(-i, "preempted", "den preempted, the KV pool is full: 1840 tokens thrown away"),)
        if i == 25:
            events = (frames.event(-i, "setting_changed", "slots 4 → 6 by console"),)
        at = frames.START + i + (DAY if i >= 40 else 0)
        seconds.append(situation.model_copy(update={"time": at, "sequence": i, "events": events}))
    return seconds


def page(app: ConsoleApp) -> HistoryPage:
    assert isinstance(app.services.navigator.page, HistoryPage)
    return app.services.navigator.page


def second(app: ConsoleApp) -> float | None:
    """Where one stands, from the first recorded second."""
    shown = page(app).shown
    return None if shown is None else shown.time - frames.START


async def at(pilot: Pilot[int], place: float) -> None:
    app = pilot.app
    assert isinstance(app, ConsoleApp)
    await until(pilot, lambda: second(app) == pytest.approx(place, abs=0.01), f"second {place}, not {second(app)}")


async def test_steps_jumps_days_and_ends() -> None:
    await record(evening())
    app, _source = console(frames.steady())
    async with app.run_test(size=SIZE) as pilot:
        await seen(pilot, "slots 3/4")
        await pilot.press("4")
        await at(pilot, DAY + 59)
        await seen(pilot, "HISTORY")
        await pilot.press("left_square_bracket")
        await at(pilot, DAY + 58)
        await pilot.press("right_square_bracket")
        await at(pilot, DAY + 59)
        await pilot.press("right_square_bracket")
        await seen(pilot, "this is the end of the recording")
        await pilot.press("left_curly_bracket")
        await at(pilot, 39)
        await pilot.press("up")
        await at(pilot, 29)
        await pilot.press("N")
        await at(pilot, 25)
        await seen(pilot, "slots 4 → 6 by console")
        await pilot.press("N")
        await at(pilot, 12)
        await seen(pilot, "den preempted, the KV pool is full")
        await seen(pilot, "! preempted")
        await pilot.press("N")
        await seen(pilot, "before this")
        await pilot.press("n")
        await at(pilot, 25)
        await pilot.press("g")
        await at(pilot, 0)
        await pilot.press("right_curly_bracket")
        await at(pilot, 39)
        await pilot.press("G")
        await at(pilot, DAY + 59)
        await pilot.press("escape")
        await until(pilot, lambda: "HISTORY" not in screen_text(app))


async def test_an_exported_piece_is_a_recording() -> None:
    await record(evening())
    app, _source = console(frames.steady())
    async with app.run_test(size=(160, 30)) as pilot:
        await pilot.press("4")
        await at(pilot, DAY + 59)
        await pilot.press("e")
        await seen(pilot, "20 frames written to")
    (path,) = (state_folder() / "exports").iterdir()
    assert [frame.sequence for frame in read_frames(path)] == list(range(40, 60))


async def test_it_plays_until_the_page_is_left() -> None:
    await record(evening())
    app, _source = console(frames.steady())
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("4")
        await at(pilot, DAY + 59)
        await pilot.press("g")
        await at(pilot, 0)
        await pilot.press("space")
        await until(pilot, lambda: (second(app) or 0) >= 2)
        assert "playing" in screen_text(app)
        assert app.services.display.view is app.services.session.store.view
        played = page(app)
        await pilot.press("1")
        assert not played.playing


async def test_keys_pressed_faster_than_it_reads_end_where_they_should() -> None:
    await record(evening())
    app, _source = console(frames.steady())
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("4")
        await at(pilot, DAY + 59)
        await pilot.press(*["left_square_bracket"] * 4)
        await at(pilot, DAY + 55)
        await pilot.press("g", "right_square_bracket", "right_square_bracket")
        await at(pilot, 2)
        assert page(app).problem == ""


async def test_without_history_it_says_so_and_a_late_one_is_found() -> None:
    app, _source = console(frames.steady())
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("4")
        await seen(pilot, "there is no history yet")
        await record(evening())
        await pilot.press("G")
        await at(pilot, DAY + 59)


async def test_a_damaged_history_is_reported_in_a_sentence() -> None:
    history_path().parent.mkdir(parents=True)
    history_path().write_bytes(b"no database " * 1000)
    app, _source = console(frames.steady())
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("4")
        await seen(pilot, "cannot be read")


@pytest.mark.parametrize("size", [(80, 24), (120, 36), (180, 50), (60, 20), (40, 15)], ids=str)
async def test_every_size_has_complete_lines(size: tuple[int, int]) -> None:
    await record(evening())
    app, _source = console(frames.steady())
    async with app.run_test(size=size) as pilot:
        await pilot.press("4")
        await at(pilot, DAY + 59)
        await pilot.press("z", "z")
        await until(pilot, lambda: page(app).seconds == 600)
        assert len(app.base.canvas.lines) == size[1]
