"""A history file whose seconds a test has made up."""

from __future__ import annotations

from slotdeck.engine.paths import history_path
from slotdeck.engine.telemetry.frame import Frame
from slotdeck.engine.telemetry.history.recorder import Recorder
from slotdeck.engine.telemetry.telemetry import Telemetry
from tests.support import frames


class Scripted:
    """Stands in for an engine whose frames are given, one for each second."""

    def __init__(self, seconds: list[Frame]) -> None:
        self.telemetry = Telemetry(lambda: 0.0, lambda: frames.START)
        self._seconds = iter(seconds)

    def frame(self, sequence: int, event_cursor: int) -> tuple[Frame, int]:
        return next(self._seconds), event_cursor


async def record(seconds: list[Frame]) -> None:
    """Write these frames into the history of this user's state folder. Their number is a multiple of ten."""
    recorder = Recorder(Scripted(seconds), history_path(), days=3650, megabytes=100)
    await recorder.open()
    for _ in range(len(seconds) // 10):
        for _ in range(10):
            recorder.take_frame()
        await recorder.write()
    await recorder.close()
