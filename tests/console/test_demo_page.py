"""The Demo page: a menu, a question while others are served, the rows side by side, and the way back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from textual.pilot import Pilot

from slotdeck.console.app import ConsoleApp
from slotdeck.console.demo.export import from_json
from slotdeck.console.demo.state import Event
from slotdeck.console.demo.wanted import Wanted
from slotdeck.console.pages.demo import DemoPage
from slotdeck.console.sources.recording import RecordingSource
from slotdeck.engine.telemetry.frame import Frame
from tests.demo.pictures import SHOWN, recorded
from tests.support import frames
from tests.support.console_app import SIZES, FakeLoad, ScriptedSource, SizeIds, screen_text, seen, until
from tests.support.demo import made

SIZE = (80, 24)


class FakeControl:
    """Tells what a test gives it."""

    def __init__(self) -> None:
        self.wanted: list[Wanted] = []
        self.events: asyncio.Queue[Event] = asyncio.Queue()

    async def run(self, wanted: Wanted, folder: Path, tell: Callable[[Event], None]) -> None:
        self.wanted.append(wanted)
        while True:
            event = await self.events.get()
            tell(event)
            if event["event"] == "end":
                return

    def stop(self) -> None:
        self.events.put_nowait({"event": "end", "how": "stopped", "text": "stopped before the end", "files": ["a"]})


def opened(frame: Frame, load: FakeLoad | None = None) -> tuple[ConsoleApp, FakeControl]:
    app = ConsoleApp(ScriptedSource(frame), socket=Path("/nowhere.sock"), load=load or FakeLoad())
    return app, FakeControl()


async def menu(pilot: Pilot[int], control: FakeControl) -> DemoPage:
    await seen(pilot, "slots")
    await pilot.press("3")
    await seen(pilot, "2, 5 and 20 people, then agents")
    page = pilot.app.services.navigator.page  # type: ignore[attr-defined]
    assert isinstance(page, DemoPage)
    page.control = control
    return page


async def test_a_demo_is_chosen_started_watched_and_ended() -> None:
    app, control = opened(frames.empty())
    async with app.run_test(size=SIZE) as pilot:
        await menu(pilot, control)
        assert "18 rows  about 7 min" in screen_text(app)
        await pilot.press("G", "k", "enter")
        await until(pilot, lambda: control.wanted == [Wanted(scenes=("pool",))])
        state = made(ended=False)
        rows = [vars(row) for row in state.rows]
        control.events.put_nowait({"event": "plan", "rows": rows, "engine": {}})
        control.events.put_nowait({"event": "row", "row": 1})
        await seen(pilot, "› static")
        await pilot.press("k")
        await seen(pilot, "› serial")
        await pilot.press("4", "3")  # it goes on behind another page
        await seen(pilot, "row 2 of 6")
        await pilot.press("x")
        await seen(pilot, "the demo: stopped before the end; reports and recording in")
        await pilot.press("escape")
        await seen(pilot, "2, 5 and 20 people, then agents")
        await pilot.press("escape")
        await seen(pilot, "KV pool")


async def test_the_demo_asks_first_while_others_are_served() -> None:
    app, control = opened(frames.steady())
    async with app.run_test(size=SIZE) as pilot:
        await menu(pilot, control)
        await pilot.press("enter")
        await seen(pilot, "start the demo?")
        assert "requests of other users run or wait" in screen_text(app)
        await pilot.press("n")
        assert control.wanted == []
        await pilot.press("enter", "y")
        await until(pilot, lambda: control.wanted == [Wanted()])
        control.stop()
        await seen(pilot, "stopped before the end")


async def test_simulated_users_would_disturb_it() -> None:
    load = FakeLoad()
    load.running = True
    app, control = opened(frames.empty(), load)
    async with app.run_test(size=SIZE) as pilot:
        await menu(pilot, control)
        await pilot.press("enter")
        await seen(pilot, "L stops them")
        assert control.wanted == []


async def test_a_recording_has_no_engine_for_a_demo() -> None:
    app = ConsoleApp(RecordingSource([frames.empty()]))
    async with app.run_test(size=SIZE) as pilot:
        await seen(pilot, "slots")
        await pilot.press("3", "enter")
        await seen(pilot, "needs an engine on this machine")


async def test_the_table_is_copied_with_its_sentences() -> None:
    app, control = opened(frames.empty())
    async with app.run_test(size=SIZE) as pilot:
        page = await menu(pilot, control)
        page.state = made(ended=True)
        copied = page.copied()
        assert copied is not None
        assert "All 4 slots were taken at times." in copied
        assert "continuous beside serial" in copied


@pytest.mark.parametrize("size", SIZES, ids=SizeIds.get)
@pytest.mark.parametrize("moment", ["menu", "running"])
def test_picture(snap_compare: Callable[..., bool], moment: str, size: tuple[int, int]) -> None:
    app, control = opened(frames.empty())

    async def look(pilot: Pilot[int]) -> None:
        page = await menu(pilot, control)
        if moment != "menu":
            page.show(made(ended=False))
        await pilot.pause()

    assert snap_compare(app, terminal_size=size, run_before=look)


@pytest.mark.parametrize("size", SIZES, ids=SizeIds.get)
def test_real_run(snap_compare: Callable[..., bool], size: tuple[int, int]) -> None:
    """The one that screenshots/ show."""
    report, frame = recorded()
    app = ConsoleApp(RecordingSource([frame]))

    async def look(pilot: Pilot[int]) -> None:
        page = await menu(pilot, FakeControl())
        page.show(from_json(report), SHOWN)
        await pilot.pause()

    assert snap_compare(app, terminal_size=size, run_before=look)
