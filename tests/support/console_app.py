"""The console as an app in Textual's test driver, over a source that the test scripts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from textual.pilot import Pilot

from slotdeck.console.app import ConsoleApp
from slotdeck.console.drawing.cells import plain
from slotdeck.console.settings.values import LIVE_SETTINGS
from slotdeck.console.sources.base import Answer, Capabilities, Disconnected, Update
from slotdeck.engine.telemetry.frame import Frame
from slotdeck.engine.telemetry.requests.detail import RequestDetail


class ScriptedSource:
    """A source that yields what the test gives it and remembers what the console asked for."""

    def __init__(self, *updates: Update) -> None:
        self.queue: asyncio.Queue[Update] = asyncio.Queue()
        for update in updates:
            self.queue.put_nowait(update)
        self.changes: list[tuple[dict[str, Any], int | None]] = []
        self.shutdowns: list[bool] = []
        self.answer: Callable[[dict[str, Any]], Answer] = lambda _changes: Answer(True, revision=4)
        self.shutdown_answer = Answer(True)
        self.cancelled: list[str] = []
        self.details: dict[str, RequestDetail] = {}
        self.cancel_answer = Answer(True)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(frozenset(LIVE_SETTINGS), cancel=True)

    async def updates(self) -> Any:
        while True:
            yield await self.queue.get()

    def give(self, update: Update) -> None:
        self.queue.put_nowait(update)

    async def change(self, changes: dict[str, Any], revision: int | None) -> Answer:
        self.changes.append((changes, revision))
        return self.answer(changes)

    async def cancel(self, request_id: str) -> Answer:
        if self.cancel_answer.ok:
            self.cancelled.append(request_id)
        return self.cancel_answer

    async def request(self, request_id: str) -> RequestDetail | Answer:
        return self.details.get(request_id, Answer(False, message="no such request runs, waits or ended lately"))

    async def shutdown(self, force: bool) -> Answer:
        self.shutdowns.append(force)
        return self.shutdown_answer


class FakeLoad:
    """Simulated users that do nothing but say whether they run."""

    users = 5

    def __init__(self) -> None:
        self.running = False
        self.ended: str | None = None

    def start(self) -> None:
        self.running = True

    def stop(self) -> None:
        self.running = False

    def ended_with(self) -> str | None:
        ended, self.ended = self.ended, None
        return ended


async def until(pilot: Pilot[int], condition: Callable[[], object], what: str = "condition") -> None:
    """Let the app run until ``condition`` holds. Fails after ten seconds."""
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come about"
        await pilot.pause(0.02)


def screen_text(app: ConsoleApp) -> str:
    """The page on the screen as plain text."""
    return "\n".join(plain(line) for line in app.base.canvas.lines)


async def seen(pilot: Pilot[int], text: str) -> None:
    """Wait until the page shows ``text``."""
    app = pilot.app
    assert isinstance(app, ConsoleApp)
    await until(pilot, lambda: text in screen_text(app), f"{text!r} on the screen")


def console(*updates: Update, **more: Any) -> tuple[ConsoleApp, ScriptedSource]:
    """An app, and the scripted source that feeds it."""
    source = ScriptedSource(*updates)
    return ConsoleApp(source, **more), source


def confirmed(frame: Frame, revision: int, **limits: int) -> Frame:
    """The next frame of the same engine, with these limits in force."""
    return frame.model_copy(
        update={
            "limits": frame.limits.model_copy(update=limits | {"revision": revision}),
            "sequence": frame.sequence + 1,
        }
    )


GONE = Disconnected("no engine answers at /run/user/1000/slotdeck/engine.sock")


SIZES = ((80, 24), (120, 36), (180, 50))


SizeIds = {size: f"{size[0]}x{size[1]}" for size in SIZES}
