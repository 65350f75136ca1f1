"""A running loop with a recorder that a test drives by hand."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

from slotdeck.engine.telemetry.history.reader import History
from slotdeck.engine.telemetry.history.recorder import Recorder
from tests.support.loop_bench import Bench


class Recording:
    """A running loop and its recorder, which a test calls by hand instead of once a second."""

    def __init__(self, path: Path, **limits: Any) -> None:
        self.bench = Bench(slots=2, queue=1)
        self.bench.loop.start()
        self.recorder = Recorder(self.bench.loop, path, **({"days": 14.0, "megabytes": 500} | limits))
        self.history = History(path)

    async def serve(self, *names: str, output: int = 20) -> None:
        for name in names:
            self.bench.submit(name, prompt=30, output=output)
        await asyncio.to_thread(self.bench.wait_for_end, *names)

    async def write(self, looks: int = 1) -> None:
        for _ in range(looks):
            self.recorder.take_frame()
        await self.recorder.write()

    def notes(self) -> list[str]:
        events, _ = self.bench.loop.telemetry.events_since(0)
        return [event.text for event in events if event.kind == "note"]

    def tables(self) -> sqlite3.Connection:
        return sqlite3.connect(self.recorder.path)

    async def close(self) -> None:
        await self.recorder.close()
        self.bench.release()
        self.bench.loop.stop()
