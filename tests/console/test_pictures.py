"""Snapshots of the Live screen: three sizes times what an admin can meet. Clocks and zone are fixed.

After a wanted change: ``pytest tests/console/test_pictures.py --snapshot-update``, then look at the pictures.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from textual.pilot import Pilot

from console.app import ConsoleApp
from console.sources.recording import RecordingSource, read_frames
from engine.telemetry.frame import Frame
from tests.console import frames
from tests.console.helpers import GONE, seen, until

SIZES = ((80, 24), (120, 36), (180, 50))
RECORDINGS = sorted((Path(__file__).parents[1] / "recordings").glob("*.ndjson.gz"))
"""Of real runs, made by ``python -m tests.screenshots``."""
SizeIds = {size: f"{size[0]}x{size[1]}" for size in SIZES}


def app_of(*pictures: Frame, lost: bool = False, ascii_only: bool = False) -> ConsoleApp:
    source = RecordingSource(pictures, ending=GONE if lost else None)
    return ConsoleApp(source, clock=lambda: 100.0, ascii_only=ascii_only)


def when(text: str) -> Callable[[Pilot[int]], object]:
    async def wait(pilot: Pilot[int]) -> None:
        await seen(pilot, text)
        await pilot.pause()

    return wait


@pytest.mark.parametrize("size", SIZES, ids=SizeIds.get)
@pytest.mark.parametrize("situation", frames.SITUATIONS)
def test_situation(snap_compare: Callable[..., bool], situation: str, size: tuple[int, int]) -> None:
    app = app_of(frames.SITUATIONS[situation]())
    assert snap_compare(app, terminal_size=size, run_before=when("KV pool"))


@pytest.mark.parametrize("size", SIZES[:2], ids=SizeIds.get)
@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda path: path.name.partition(".")[0])
def test_real_run(snap_compare: Callable[..., bool], recording: Path, size: tuple[int, int]) -> None:
    recorded = list(read_frames(recording))
    app = app_of(*recorded)

    async def wait(pilot: Pilot[int]) -> None:
        await until(pilot, lambda: app.store.view.frame == recorded[-1])
        app.draw()
        await pilot.pause()

    assert snap_compare(app, terminal_size=size, run_before=wait)


@pytest.mark.parametrize("size", SIZES, ids=SizeIds.get)
def test_disconnected(snap_compare: Callable[..., bool], size: tuple[int, int]) -> None:
    assert snap_compare(app_of(frames.nearly_full(), lost=True), terminal_size=size, run_before=when("DISCONNECTED"))


@pytest.mark.parametrize("size", SIZES, ids=SizeIds.get)
def test_tui_05_no_color(
    snap_compare: Callable[..., bool], size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert snap_compare(app_of(frames.preempting()), terminal_size=size, run_before=when("KV pool"))


def test_tui_16_ascii(snap_compare: Callable[..., bool]) -> None:
    app = app_of(frames.preempting(), ascii_only=True)
    assert snap_compare(app, press=["question_mark"], run_before=when("KV pool"))


@pytest.mark.parametrize("size", [(60, 20), (40, 15)], ids=["60x20", "40x15"])
def test_tui_06_small(snap_compare: Callable[..., bool], size: tuple[int, int]) -> None:
    assert snap_compare(app_of(frames.nearly_full()), terminal_size=size, run_before=when("KV pool"))


def test_twenty_slots(snap_compare: Callable[..., bool]) -> None:
    assert snap_compare(app_of(frames.busy(3)), terminal_size=(80, 24), run_before=when("below"))


@pytest.mark.parametrize("theme", ["slotdeck-light", "slotdeck-contrast", "slotdeck-ansi"])
def test_theme(snap_compare: Callable[..., bool], theme: str) -> None:
    app = app_of(frames.preempting())

    async def switch(pilot: Pilot[int]) -> None:
        await seen(pilot, "KV pool")
        app._use_theme(theme)
        await pilot.pause()

    assert snap_compare(app, run_before=switch)
