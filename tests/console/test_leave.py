"""Leaving the console: with the engine, without it, or not at all."""

from __future__ import annotations

import pytest

from slotdeck.console.drawing.cells import plain
from slotdeck.console.screens.leave import LeaveScreen
from slotdeck.console.sources.base import Answer, Disconnected
from tests.support import frames
from tests.support.console_app import GONE, console, seen, until

SIZE = (80, 24)


@pytest.mark.parametrize("key", ["q", "ctrl+c", "f10", "ctrl+q"])
async def test_tui_14_leaving_an_engine_of_others_only_detaches(key: str) -> None:
    app, source = console(frames.nearly_full())
    async with app.run_test(size=SIZE) as pilot:
        await seen(pilot, "slots 4/4")
        await pilot.press(key)
        await until(pilot, lambda: not app.is_running)
    assert source.shutdowns == []
    assert app.return_value == 0


async def test_quitting_with_a_hosted_engine_asks_and_waits_for_the_drain() -> None:
    app, source = console(frames.nearly_full(), hosted=True)
    async with app.run_test(size=SIZE) as pilot:
        await seen(pilot, "slots 4/4")
        await pilot.press("q")
        await until(pilot, lambda: isinstance(app.screen, LeaveScreen))
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is app.base)
        await pilot.press("ctrl+c")
        await until(pilot, lambda: isinstance(app.screen, LeaveScreen))
        await pilot.press("s")
        await until(pilot, lambda: source.shutdowns == [False])
        source.give(frames.nearly_full().model_copy(update={"health": "draining", "sequence": 2}))
        await seen(pilot, "DRAINING")
        assert app.is_running
        source.give(GONE)
        await until(pilot, lambda: not app.is_running)
    assert app.return_value == 0


async def test_a_hosted_engine_can_be_left_running() -> None:
    app, source = console(frames.nearly_full(), hosted=True)
    async with app.run_test(size=SIZE) as pilot:
        await seen(pilot, "slots 4/4")
        await pilot.press("q", "l")
        await until(pilot, lambda: not app.is_running)
    assert source.shutdowns == []


async def test_a_second_quit_forces() -> None:
    app, source = console(frames.nearly_full(), hosted=True)
    async with app.run_test(size=SIZE) as pilot:
        await seen(pilot, "slots 4/4")
        await pilot.press("q", "ctrl+c")
        await until(pilot, lambda: source.shutdowns == [True])
        source.give(GONE)
        await until(pilot, lambda: not app.is_running)


async def test_an_idle_hosted_engine_asks_too() -> None:
    app, source = console(frames.empty(), hosted=True)
    async with app.run_test(size=SIZE) as pilot:
        await seen(pilot, "slots 0/4")
        await pilot.press("q")
        await until(pilot, lambda: isinstance(app.screen, LeaveScreen))
        panel = app.screen
        assert isinstance(panel, LeaveScreen)
        await until(pilot, lambda: any("No request is being served" in plain(line) for line in panel._canvas.lines))
        assert source.shutdowns == []
        await pilot.press("s")
        await until(pilot, lambda: source.shutdowns == [False])
        source.give(Disconnected("gone"))
        await until(pilot, lambda: not app.is_running)


async def test_an_engine_that_refuses_to_stop_keeps_the_question() -> None:
    app, source = console(frames.nearly_full(), hosted=True)
    source.shutdown_answer = Answer(False, message="the admin API answered 500")
    async with app.run_test(size=SIZE) as pilot:
        await seen(pilot, "slots 4/4")
        await pilot.press("q", "s")
        await until(pilot, lambda: app.services.leaving.problem)
        assert app.is_running
        panel = app.screen
        assert isinstance(panel, LeaveScreen)
        await until(pilot, lambda: any("does not stop" in plain(line) for line in panel._canvas.lines))
        await pilot.press("l")
        await until(pilot, lambda: not app.is_running)
