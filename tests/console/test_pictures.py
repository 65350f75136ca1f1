"""Pictures of the console, one for each situation and size. Clocks and time zone are fixed.

The pictures of real runs are in ``screenshots/``; situations that no recording has are snapshots. After a wanted change
run ``pytest tests/console --snapshot-update`` and look at the pictures.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from textual.pilot import Pilot

from slotdeck.console.app import ConsoleApp
from slotdeck.console.sources.recording import RecordingSource
from slotdeck.engine.telemetry.frame import Frame
from tests.screenshots import PICTURES, RECORDINGS, SCENES, Picture, moment, pictures, render
from tests.support import frames
from tests.support.console_app import GONE, SIZES, SizeIds, seen, until


def app_of(*pictures: Frame, lost: bool = False, ascii_only: bool = False) -> ConsoleApp:
    source = RecordingSource(pictures, ending=GONE if lost else None)
    return ConsoleApp(source, clock=lambda: 100.0, ascii_only=ascii_only)


def when(text: str) -> Callable[[Pilot[int]], object]:
    async def wait(pilot: Pilot[int]) -> None:
        await seen(pilot, text)
        await pilot.pause()

    return wait


@pytest.mark.snapshot
@pytest.mark.parametrize("picture", pictures(), ids=lambda picture: picture.stem)
async def test_the_pictures_of_real_runs_are_what_the_console_draws(picture: Picture) -> None:
    """``screenshots/``; after a wanted change: ``make screenshots`` with ``ARGS=--keep-recordings``."""
    drawn = await render(picture)
    same = drawn == (PICTURES / f"{picture.stem}.svg").read_text(
        "utf-8"
    )  # pytest takes minutes to compare long strings
    assert same, "make screenshots ARGS=--keep-recordings"


def recorded(name: str) -> list[Frame]:
    """A real run up to its moment."""
    scene = next(scene for scene in SCENES if scene.name == name)
    return moment(RECORDINGS / f"{name}.ndjson.gz", scene.best)


@pytest.mark.parametrize("size", SIZES, ids=SizeIds.get)
def test_disconnected(snap_compare: Callable[..., bool], size: tuple[int, int]) -> None:
    assert snap_compare(
        app_of(*recorded("pool-nearly-full"), lost=True), terminal_size=size, run_before=when("DISCONNECTED")
    )


@pytest.mark.parametrize("size", SIZES, ids=SizeIds.get)
def test_tui_05_no_color(
    snap_compare: Callable[..., bool], size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    frames = recorded("preempting")
    app = app_of(*frames)

    async def wait(pilot: Pilot[int]) -> None:
        await until(pilot, lambda: app.services.session.store.view.frame == frames[-1])
        app.draw()
        await pilot.pause()

    assert snap_compare(app, terminal_size=size, run_before=wait)


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
        app.use_theme(theme)
        await pilot.pause()

    assert snap_compare(app, run_before=switch)
