"""Composing a page has no side effects: nothing is changed, started or drawn, whatever the size."""

from __future__ import annotations

import copy
from collections import deque
from typing import Any

import pytest

from slotdeck.console.app import ConsoleApp
from slotdeck.console.pages.page import Page
from slotdeck.console.pages.page_registry import PAGES
from tests.support import frames
from tests.support.console_app import console, seen
from tests.support.request_detail import RECORDED

SIZES = ((80, 24), (120, 36), (60, 20), (40, 15), (80, 24))


def state(page: Page) -> dict[str, Any]:
    """What a page keeps, as copies where it could be changed in place."""
    kept = {name: value for name, value in vars(page).items() if name not in ("context", "handlers", "_history")}
    return {name: copy.copy(value) if isinstance(value, dict | deque | list) else value for name, value in kept.items()}


@pytest.mark.parametrize("name", PAGES)
async def test_compose_changes_nothing_and_starts_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    app, source = console(frames.nearly_full())
    source.details["r0"] = RECORDED
    async with app.run_test(size=(80, 24)) as pilot:
        await seen(pilot, "slots 4/4")
        services = app.services
        services.navigator.open(name, "r0" if name == "request" else None)
        await pilot.press("j", "pagedown", "j")
        await pilot.pause(0.1)
        page, view = services.navigator.page, services.display.view

        def forbidden(*_arguments: object, **_more: object) -> None:
            raise AssertionError("compose has a side effect")

        with monkeypatch.context() as patched:
            patched.setattr(ConsoleApp, "run_in_background", forbidden)
            patched.setattr(ConsoleApp, "draw", forbidden)
            patched.setattr(services.status, "say", forbidden)
            before, drawn = state(page), []
            for width, height in SIZES:
                lines = page.compose(view, services.chrome(view, width, height), width, height)
                assert len(lines) == height
                drawn.append(lines)
                assert state(page) == before
            assert drawn[0] == drawn[-1], "the sizes in between left no trace"
