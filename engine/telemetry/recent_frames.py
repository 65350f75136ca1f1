"""Keeps the last ten minutes in memory, one frame per second, for consoles that connect later.

It does not depend on the history file.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

from slotdeck.engine.telemetry.frame import EngineInfo, Frame, SlotInfo

FRAMES_KEPT = 600
FRAME_SECONDS = 1.0


class Watched(Protocol):
    """Anything that gives frames, such as the engine loop."""

    def frame(self, sequence: int, event_cursor: int) -> tuple[Frame, int]: ...


class RecentFrames:
    """Used on the asyncio loop only. It stores frames as JSON, without the parts that matter only when they are new."""

    def __init__(self) -> None:
        self._lines: deque[bytes] = deque(maxlen=FRAMES_KEPT)

    async def follow(self, engine: Watched, stopping: asyncio.Event) -> None:
        """Take one frame per second until ``stopping`` is set."""
        cursor = sequence = 0
        while not stopping.is_set():
            sequence += 1
            frame, cursor = engine.frame(sequence, cursor)
            self.add(frame)
            try:
                async with asyncio.timeout(FRAME_SECONDS):
                    await stopping.wait()
            except TimeoutError:
                pass

    def add(self, frame: Frame) -> None:
        """Keep one frame with its events."""
        slots = tuple(
            SlotInfo(slot=slot.slot, state=slot.state, request_id=slot.request_id, user=slot.user)
            for slot in frame.slots
            if slot.state != "idle"
        )
        kept = {"engine": EngineInfo(), "limits": frame.limits.model_copy(update={"bounds": {}}), "slots": slots}
        bare = frame.model_copy(update=kept | {"waiting": (), "recent_ttft": ()})
        self._lines.append(bare.model_dump_json(exclude_defaults=True).encode() + b"\n")

    def lines(self) -> bytes:
        """All frames as NDJSON, oldest first."""
        return b"".join(self._lines)
