"""The Doctor page: it speaks when something is wrong, is silent with numbers when not, and rests when hidden."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from textual.pilot import Pilot

from console.app import ConsoleApp
from console.screens.doctor import DoctorPage
from console.sources.recording import RecordingSource, read_frames
from tests.advice.test_doctor import QUEUED, run
from tests.console import frames
from tests.console.helpers import console, screen_text, seen, until
from tests.console.test_history_page import record

SIZE = (80, 24)
PREEMPTING = Path(__file__).parents[1] / "recordings" / "preempting.ndjson.gz"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("console.screens.doctor.LOOK_SECONDS", 0.02)


async def test_silence_comes_with_numbers() -> None:
    app, _source = console(frames.empty())
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("5")
        await seen(pilot, "Nothing is wrong.")
        assert "TTFT p95" in screen_text(app)


async def test_a_queue_is_found_and_its_key_named_and_copied() -> None:
    first, *rest = run(**QUEUED)
    app, source = console(first)
    async with app.run_test(size=SIZE) as pilot:
        await seen(pilot, "slots 4/4")
        await pilot.press("5")
        for frame in rest:
            source.give(frame)
        await seen(pilot, "- Requests wait for a slot")
        await seen(pilot, "key s")
        assert "95% waited up to 4.2 s for a slot" in screen_text(app)
        copied = app.page.copied()
        assert copied is not None
        assert copied.startswith("Requests wait for a slot\n95% waited")


async def test_it_begins_with_what_is_recorded() -> None:
    recorded = list(read_frames(PREEMPTING))
    await record([frame.model_copy(update={"engine": frames.ENGINE}) for frame in recorded[: len(recorded) // 10 * 10]])
    app, _source = console(recorded[-1])
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.press("5")
        await seen(pilot, "! Running requests lose their KV")
        await pilot.press("j", "k", "G", "g")
        await seen(pilot, "! Running requests lose their KV")


async def test_nothing_is_done_while_another_page_is_shown() -> None:
    app, source = console(frames.steady())
    async with app.run_test(size=SIZE) as pilot:
        await seen(pilot, "slots 3/4")
        await pilot.press("5")
        await seen(pilot, "Doctor")
        page = app.page
        assert isinstance(page, DoctorPage)
        await until(pilot, lambda: page.findings is not None)
        await pilot.press("1")
        source.give(frames.busy(4))
        await seen(pilot, "slots 20/20")
        await until(pilot, lambda: not [w for w in app.workers if w.group == "doctor" and w.is_running])
        assert app.store.view.frame not in page._frames


def picture(pilot_text: str) -> Callable[[Pilot[int]], object]:
    async def ready(pilot: Pilot[int]) -> None:
        app = pilot.app
        assert isinstance(app, ConsoleApp)
        await until(pilot, lambda: app.store.view.frame is not None and app.store.view.frame.sequence == 1)
        await seen(pilot, "KV pool")
        await pilot.press("5")
        await seen(pilot, pilot_text)
        await pilot.pause()

    return ready


@pytest.mark.parametrize("size", [(80, 24), (120, 36)], ids=["80x24", "120x36"])
def test_picture(snap_compare: Callable[..., bool], size: tuple[int, int]) -> None:
    recorded = list(read_frames(PREEMPTING))
    asyncio.run(record(recorded[: len(recorded) // 10 * 10]))
    app = ConsoleApp(RecordingSource([recorded[-1].model_copy(update={"sequence": 1})]), clock=lambda: 100.0)
    assert snap_compare(app, terminal_size=size, run_before=picture("Running requests lose their KV"))
