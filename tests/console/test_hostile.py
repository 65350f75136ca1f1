"""Hostile labels, names and reasons of clients and servers never break a line of a page or panel."""

from __future__ import annotations

import re

import pytest
from rich.cells import cell_len

from slotdeck.console.advice.finding import Finding
from slotdeck.console.drawing.cells import line_width, plain
from slotdeck.console.drawing.glyphs import to_ascii
from slotdeck.console.pages.page import Page
from slotdeck.console.pages.page_registry import PAGES
from slotdeck.console.sections.findings import finding_lines
from slotdeck.console.sources.base import Disconnected, EngineEnd
from slotdeck.console.state.store import Store
from slotdeck.engine.telemetry.frame import Frame, WaitingInfo
from tests.support import frames
from tests.support.console_app import console, seen
from tests.support.hostile import HOSTILE
from tests.support.request_detail import RECORDED

SIZES = ((80, 24), (60, 20), (40, 15), (120, 36), (180, 50))
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2028\u2029]")
UNSENDABLE = "\ud800"
"""No JSON text can hold half a pair."""


def hostile(text: str, second: float) -> Frame:
    """A frame with ``text`` wherever a frame holds text."""
    slots = (
        frames.decoding(0, text, 10, 5, request_id=text or "r"),
        frames.decoding(1, text, 10, 5, state="preempted", preemptions=2, stalled=3.0),
        frames.decoding(2, text, 10, 0, state="prefill", computed_tokens=4),
        frames.decoding(3, text, 10, 5, state="held"),
    )
    events = tuple(
        frames.event(0, kind, text) for kind in ("preempted", "failed", "rejected", "setting_changed", "note")
    )
    engine = frames.ENGINE.model_copy(
        update=dict.fromkeys(("name", "version", "model", "weights", "kv_dtype", "device", "url"), text)
        | {"notes": (text,)}
    )
    waiting = tuple(WaitingInfo(request_id=f"w{i}", user=text, prompt_tokens=1, waited=1.0) for i in range(3))
    frame = frames.frame(slots=slots, waiting=waiting, events=events, time=frames.START + second)
    limits = frame.limits.model_copy(update={"mode": text, "preemption": text})
    return frame.model_copy(
        update={"engine": engine, "limits": limits, "health_reason": text, "health": "fault" if second % 2 else "ok"}
    )


def assert_whole(lines: list[tuple[tuple[str, str], ...]], cells: int) -> None:
    for line in lines:
        text = plain(line)
        assert line_width(line) == cells == cell_len(text)
        assert not CONTROL.search(text)
        assert to_ascii(text).isascii()


@pytest.mark.slow
async def test_every_page_with_every_hostile_text() -> None:
    app, source = console(frames.steady())
    detail = RECORDED.model_copy(update={"request_id": "r0"})
    source.details = {"r0": detail}
    async with app.run_test(size=(120, 36)) as pilot:
        await seen(pilot, "slots 3/4")
        for name in PAGES:
            app.services.navigator.open(name, "r0" if name == "request" else None)
            await pilot.pause(0.05)
            page = app.services.navigator.page
            for number, text in enumerate(HOSTILE):
                poison(page, text)
                view = store_of(hostile(text, number), text if number % 3 == 0 else None).view
                app.services.status.say(text)
                chrome = app.services.chrome(view, 120, 36)
                page.on_view(view)
                for cells, rows in SIZES:
                    lines = page.compose(view, chrome, cells, rows)
                    assert len(lines) == rows
                    assert_whole(lines, cells)


def store_of(frame: Frame, lost: str | None) -> Store:
    """A store that saw it, and then perhaps lost the engine for such a reason."""
    store = Store()
    store.apply(frame)
    if lost is not None:
        store.apply(Disconnected(lost, end=EngineEnd(lost) if len(lost) % 2 else None))
    return store


def poison(page: Page, text: str) -> None:
    """Text that reaches a page by other ways than frames."""
    detail = getattr(page, "detail", None)
    if detail is not None:
        told = {"user": text, "why": text, "failure": text, "finish_reason": text, "freed_by": text}
        gaps = tuple(gap.model_copy(update={"text": text}) for gap in detail.long_gaps)
        page.detail = detail.model_copy(update=told | {"long_gaps": gaps})  # type: ignore[attr-defined]
    if hasattr(page, "problem"):
        page.problem = text


async def test_questions_filters_and_toasts_with_every_hostile_text() -> None:
    app, _source = console(frames.steady())
    async with app.run_test(size=(80, 24)) as pilot:
        await seen(pilot, "slots 3/4")
        for text in HOSTILE:
            app.services.session.ask_cancel("r0", text)
            app.draw()
            assert_whole(app.base.canvas.lines, 80)
            await app.press("escape")
            await app.press("slash", "/")
            assert app.services.status.prompt is not None
            for character in text[:40]:
                app.services.status.prompt.press(character, character)
            app.draw()
            assert_whole(app.base.canvas.lines, 80)
            await app.press("escape")
            if text != UNSENDABLE:
                app.notify(text, markup=False)
        await pilot.pause()
        assert app.is_running


def test_findings_with_every_hostile_text() -> None:
    for text in HOSTILE:
        finding = Finding("rule", "warn", text, (text, text), text, text)
        for cells in (40, 60, 80, 180):
            lines, _ = finding_lines([finding, finding], 0, frames.limits_of(), cells)
            assert_whole(lines, cells)
