"""Performs one demonstration, for the command line and for the Demo page: runs it, exports it, reports its end."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path

from slotdeck.console.client.admin import AdminError, NoEngineError
from slotdeck.console.demo import export
from slotdeck.console.demo.run import Demo, DemoError
from slotdeck.console.demo.state import ENDINGS, DemoState, Event
from slotdeck.console.demo.wanted import Wanted
from slotdeck.console.load.client import RequestFailedError
from slotdeck.console.load.traffic import SIMULATED
from slotdeck.engine.telemetry.frame import Frame


def others(frame: Frame) -> int:
    """How many requests of real people run or wait now. The demo would change the mode for them."""
    running = sum(slot.request_id is not None and not _simulated(slot.user) for slot in frame.slots)
    return running + sum(not _simulated(entry.user) for entry in frame.waiting)


def _simulated(user: str | None) -> bool:
    return user is not None and user.startswith(SIMULATED)


def warning(count: int) -> str:
    """A sentence about what the demo means for them."""
    who = "1 request of another user runs or waits" if count == 1 else f"{count} requests of other users run or wait"
    return f"{who}: the demo changes the mode for them and takes their slots"


async def perform(
    socket: Path, wanted: Wanted, *, seed: int, on_event: Callable[[Event], None], folder: Path | None,
    stop: asyncio.Event | None = None,
) -> DemoState:  # fmt: skip
    """Run a demonstration. SIGINT, SIGTERM, SIGHUP or ``stop`` end it early.

    ``on_event`` gets every event; the last one, ``end``, reports any failure. The reports and the recording are written
    to ``folder``, also after an early end.
    """
    state = DemoState()

    def both(event: Event) -> None:
        state.apply(event)
        on_event(event)

    recording = None if folder is None else folder / export.RECORDING
    demo = Demo(socket, wanted.rows, seed=seed, on_event=both, recording=recording)
    task = asyncio.create_task(demo.run())
    loop = asyncio.get_running_loop()
    caught = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in caught:
        loop.add_signal_handler(number, task.cancel)
    stopper = None if stop is None else asyncio.create_task(_cancel_at(stop, task))
    how, failure = "done", ""
    try:
        await task
    except asyncio.CancelledError:
        how = "stopped"
    except (NoEngineError, AdminError, RequestFailedError, DemoError, OSError) as error:
        how, failure = "failed", str(error)
    finally:
        for number in caught:
            loop.remove_signal_handler(number)
        if stopper is not None:
            stopper.cancel()
    text = ENDINGS.get(how, failure)
    files: list[str] = []
    if folder is not None and state.rows:
        state.ended = how  # type: ignore[assignment]
        try:
            files = await asyncio.to_thread(export.write, folder, state, seed)
        except OSError as error:
            text = f"{text}; the report could not be written: {error}"
    both({"event": "end", "how": how, "text": text, "files": files})
    return state


async def _cancel_at(stop: asyncio.Event, task: asyncio.Task[None]) -> None:
    await stop.wait()
    task.cancel()
