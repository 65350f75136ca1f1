"""Records a frame per second, every event and every ended request while the engine serves.

It is one asyncio task of the engine process and needs no console. If something goes wrong (a full disk, a damaged
file, a read-only folder), recording stops with one sentence and is tried again later. Requests never notice.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from slotdeck.engine.core.events import Event
from slotdeck.engine.paths import history_path
from slotdeck.engine.settings import StartSettings
from slotdeck.engine.telemetry.frame import Frame, FrameEvent, FrameEventKind
from slotdeck.engine.telemetry.history.schema import WRITE_SECONDS, RequestRecord
from slotdeck.engine.telemetry.history.writer import FAILURES, MEGABYTE, HistoryWriter
from slotdeck.engine.telemetry.telemetry import Telemetry
from slotdeck.engine.telemetry.windows import percentiles

log = logging.getLogger("slotdeck.history")

FRAME_SECONDS = 1.0
FRAMES_IN_CHUNK = round(WRITE_SECONDS / FRAME_SECONDS)
"""Frames that are written together; a crash loses at most these. The first frame in which a request is served is
written at once, so that the history shows a crash soon after it.
"""
RETRY_SECONDS = 60.0
"""Time between two attempts to record again, and between two checks of age and size."""
SAME_KIND_KEPT = 50
"""Events of one kind that are kept per second. One line counts the rest, so that a flood does not fill the disk."""
MAX_ENDED = 10_000
DAY = 86_400.0


class RecordedEngine(Protocol):
    """Anything that gives frames and has a telemetry, such as the engine loop."""

    telemetry: Telemetry

    def frame(self, sequence: int, event_cursor: int) -> tuple[Frame, int]: ...


def open_recorder(engine: RecordedEngine, settings: StartSettings) -> Recorder | None:
    """The recorder of ``engine``; ``None`` if the settings ask for no history."""
    if settings.history_days == 0:
        return None
    return Recorder(engine, history_path(), days=settings.history_days, megabytes=settings.history_size)


class Recorder:
    """Writes to ``path`` until it is stopped. What is older than ``days`` or beyond ``megabytes`` is deleted."""

    def __init__(self, engine: RecordedEngine, path: Path, *, days: float, megabytes: float) -> None:
        self._engine = engine
        self._writer = HistoryWriter(path)
        self._days = days
        self._bytes = megabytes * MEGABYTE
        self._problem: str | None = None
        self._cursor = 0
        self._sequence = 0
        self._now = 0.0
        self._frames: list[Frame] = []
        self._events: list[FrameEvent] = []
        self._ended: deque[tuple[Event, float]] = deque(maxlen=MAX_ENDED)
        engine.telemetry.on_ended = lambda event, wall: self._ended.append((event, wall))

    @property
    def path(self) -> Path:
        return self._writer.path

    @property
    def recording(self) -> bool:
        """True while the file is open."""
        return self._writer.is_open

    async def run(self, stopping: asyncio.Event) -> None:
        """Record until ``stopping`` is set, then write the rest and close. Raises nothing but CancelledError."""
        try:
            await self.open()
            next_care = RETRY_SECONDS
            serves = False
            while not await _within(FRAME_SECONDS, stopping):
                served, serves = serves, self.take_frame()
                if len(self._frames) >= FRAMES_IN_CHUNK or (serves and not served):
                    await self.write()
                next_care -= FRAME_SECONDS
                if next_care <= 0:
                    next_care = RETRY_SECONDS
                    await (self.prune() if self.recording else self.open())
            self.take_frame()
            await self.write()
        except Exception:
            log.exception("recording ended by a fault; serving goes on")
            self._report("history is not recorded any more: a fault of the recorder, see the engine's log")
        finally:
            self._engine.telemetry.on_ended = None
            await self.close()

    def take_frame(self) -> bool:
        """Take one frame with the events since the last one. Returns whether any request runs or waits."""
        self._sequence += 1
        before = self._cursor
        frame, self._cursor = self._engine.frame(self._sequence, before)
        self._now = frame.time
        events = thinned(frame.events, frame.time, missed=self._cursor - before - len(frame.events))
        self._frames.append(frame.model_copy(update={"events": events}))
        self._events += events
        return frame.in_flight > 0

    async def open(self) -> None:
        """Open the file, or report once why that failed."""
        try:
            aside = await self._writer.open()
        except FAILURES as error:
            await self._failed(error)
            return
        if aside is not None:
            self._report(aside)
        if self._problem is not None:
            self._problem = None
            self._report("history is recorded again", lasting=False)

    async def write(self) -> None:
        """Write everything taken so far. If the file is not open, drop it."""
        frames, self._frames = self._frames, []
        events, self._events = self._events, []
        ended = [self._ended.popleft() for _ in range(len(self._ended))]
        if not self.recording or not frames:
            return
        try:
            boot_id = frames[-1].boot_id
            await self._writer.insert(frames, events, [record_of(event, wall, boot_id) for event, wall in ended])
        except FAILURES as error:
            await self._failed(error)

    async def prune(self) -> None:
        """Delete what is too old, then the oldest until the file is small enough."""
        try:
            await self._writer.prune(self._now - self._days * DAY, self._bytes)
        except FAILURES as error:
            await self._failed(error)

    async def close(self) -> None:
        """Close the file."""
        await self._writer.close()

    async def _failed(self, error: Exception) -> None:
        """Continue with a new file if the old one is damaged, else stop recording. The same reason is reported once."""
        aside = await self._writer.recover(error)
        if aside is not None:
            self._report(aside)
        elif str(error) != self._problem:
            self._problem = str(error)
            self._report(f"history is not recorded: {error}; tried again each minute")

    def _report(self, text: str, *, lasting: bool = True) -> None:
        """Log an event for those who watch now and, if it lasts, set a note for those who connect later."""
        log.warning("%s", text)
        self._engine.telemetry.log("note", text)
        self._engine.telemetry.set_note("history", text if lasting else None)


async def _within(seconds: float, event: asyncio.Event) -> bool:
    """Wait for ``event`` for so many seconds at most. Returns whether it is set."""
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False


def thinned(events: Iterable[FrameEvent], now: float, missed: int = 0) -> tuple[FrameEvent, ...]:
    """The events of one second; a flood is cut and counted. ``missed`` events came too fast to be seen at all."""
    kept: list[FrameEvent] = []
    seen: Counter[FrameEventKind] = Counter()
    for event in events:
        seen[event.kind] += 1
        if seen[event.kind] <= SAME_KIND_KEPT:
            kept.append(event)
    for kind, number in seen.items():
        if number > SAME_KIND_KEPT:
            text = f"and {number - SAME_KIND_KEPT} more of this kind within the same second"
            kept.append(FrameEvent(time=now, kind=kind, text=text))
    if missed > 0:
        kept.append(FrameEvent(time=now, kind="note", text=f"{missed} further events came too fast to be recorded"))
    return tuple(kept)


def record_of(event: Event, wall: float, boot_id: str) -> RequestRecord:
    request, timeline = event.request, event.request.timeline
    itl_p50, itl_p95, itl_max = percentiles(request.gaps, 50, 95, 100)
    return RequestRecord(
        boot_id=boot_id,
        request_id=request.id,
        user=request.user,
        ended=wall,
        outcome=request.state.value,
        finish_reason=request.finish_reason.value if request.finish_reason else None,
        failure=request.failure,
        slot=request.slot,
        prompt_tokens=request.num_prompt_tokens,
        output_tokens=request.num_output_tokens,
        max_tokens=request.sampling.max_tokens,
        intake=timeline.intake,
        queue_wait=timeline.queue_wait,
        prefill=timeline.prefill,
        ttft=timeline.ttft,
        duration=event.time - timeline.arrival,
        itl_p50=itl_p50,
        itl_p95=itl_p95,
        itl_max=itl_max,
        preemptions=request.num_preemptions,
        recomputed_tokens=request.recomputed_tokens,
        stalled=request.stalled,
    )
