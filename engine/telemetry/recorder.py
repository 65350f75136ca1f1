"""Records what happens while the engine serves: a frame a second, every event, every ended request.

One asyncio task of the engine process, with or without a console. Whatever goes wrong here (a full disk, a damaged
file, a folder that cannot be written) stops recording with one sentence and is tried again later; it never reaches
a request.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import sqlite3
from collections import Counter, deque
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Protocol

import aiosqlite

from engine.core.events import Event
from engine.core.request import State
from engine.settings import StartSettings
from engine.telemetry.frame import EngineInfo, Frame, FrameEvent
from engine.telemetry.history_file import (
    EVENT_COLUMNS,
    SCHEMA,
    SCHEMA_VERSION,
    ChunkInfo,
    RequestRecord,
    history_path,
    pack,
    summarise,
)
from engine.telemetry.telemetry import Telemetry
from engine.telemetry.windows import percentiles

log = logging.getLogger("slotdeck.history")

FRAME_SECONDS = 1.0
FRAMES_IN_CHUNK = 10
"""Frames that are written together; a crash loses at most these."""
RETRY_SECONDS = 60.0
"""Between two attempts to record again, and between two looks at age and size."""
SAME_KIND_KEPT = 50
"""Events of one kind kept of one second; the rest become one line, so that a flood of refusals fills no disk."""
MOST_ENDED = 10_000
MEGABYTE = 1_000_000
WAL_LIMIT = f"journal_size_limit = {8 * MEGABYTE}"
DAY = 86_400.0


class Recorded(Protocol):
    """What is recorded; the engine loop in the product."""

    info: EngineInfo
    telemetry: Telemetry

    def frame(self, sequence: int, event_cursor: int) -> tuple[Frame, int]: ...


def open_recorder(engine: Recorded, settings: StartSettings) -> Recorder | None:
    """What writes the history of ``engine``; ``None`` when the settings want none."""
    if settings.history_days == 0:
        return None
    return Recorder(engine, history_path(), days=settings.history_days, megabytes=settings.history_size)


class HistoryBusyError(OSError):
    """Another engine of this user records into the file."""


class Recorder:
    """Writes ``path`` until told to stop. ``days`` and ``megabytes`` bound what is kept; the oldest goes first."""

    def __init__(self, engine: Recorded, path: Path, *, days: float, megabytes: float) -> None:
        self.path = path
        self._engine = engine
        self._days = days
        self._bytes = megabytes * MEGABYTE
        self._note: str | None = None
        self._cursor = 0
        self._sequence = 0
        self._now = 0.0
        self._frames: list[Frame] = []
        self._events: list[FrameEvent] = []
        self._ended: deque[tuple[Event, float]] = deque(maxlen=MOST_ENDED)
        self._database: aiosqlite.Connection | None = None
        self._lock: IO[str] | None = None
        self._boot: EngineInfo | None = None
        self._problem: str | None = None
        engine.telemetry.on_ended = lambda event, wall: self._ended.append((event, wall))

    @property
    def recording(self) -> bool:
        """True while the file is open."""
        return self._database is not None

    async def run(self, stopping: asyncio.Event) -> None:
        """Record until ``stopping`` is set, then write the rest and close. Raises nothing but CancelledError."""
        try:
            await self.open()
            next_care = RETRY_SECONDS
            while not await _within(FRAME_SECONDS, stopping):
                self.look()
                if len(self._frames) >= FRAMES_IN_CHUNK:
                    await self.write()
                next_care -= FRAME_SECONDS
                if next_care <= 0:
                    next_care = RETRY_SECONDS
                    await (self.prune() if self.recording else self.open())
            self.look()
            await self.write()
        except Exception:
            log.exception("recording ended by a fault; serving goes on")
            self._tell("history is not recorded any more: a fault of the recorder, see the engine's log")
        finally:
            self._engine.telemetry.on_ended = None
            await self._close()

    def look(self) -> None:
        """Take one frame and what ended since the last one."""
        self._sequence += 1
        before = self._cursor
        frame, self._cursor = self._engine.frame(self._sequence, before)
        self._now = frame.time
        events = thinned(frame.events, frame.time, missed=self._cursor - before - len(frame.events))
        self._frames.append(frame.model_copy(update={"events": events}))
        self._events += events

    async def write(self) -> None:
        """Bring what was taken to the file. Without a file it is dropped."""
        frames, self._frames = self._frames, []
        events, self._events = self._events, []
        ended = [self._ended.popleft() for _ in range(len(self._ended))]
        if self._database is None or not frames:
            return
        try:
            if not self.path.exists():
                raise FileNotFoundError(f"{self.path} was taken away")
            body = await asyncio.to_thread(pack, frames)
            records = [_record(event, wall, frames[-1].boot_id) for event, wall in ended]
            await self._insert(self._database, frames, body, events, records)
        except (sqlite3.Error, OSError) as error:
            await self._failed(error)

    async def prune(self) -> None:
        """Forget what is older than the days to keep, then the oldest until the file is small enough."""
        if self._database is None:
            return
        try:
            await self._prune(self._database, self._now)
        except (sqlite3.Error, OSError) as error:
            await self._failed(error)

    # -- the file --------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Open the file, or say once why not. A damaged one is set aside for a new one."""
        try:
            await self._open()
        except (sqlite3.Error, OSError) as error:
            await self._failed(error)
            return
        if self._problem is not None:
            self._problem = None
            self._tell("history is recorded again", lasting=False)

    async def _open(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self._lock is None:
            self._lock = _take_lock(self.path)
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
        try:
            await self._connect()
        except sqlite3.Error as error:
            if not _damaged(error):
                raise
            await self._set_aside(str(error))
            await self._connect()

    async def _connect(self) -> None:
        database = self._database = await aiosqlite.connect(self.path, timeout=5)
        # Each is read to its end: a statement left open would be in the way of the next commit.
        for pragma in ("auto_vacuum = INCREMENTAL", "journal_mode = WAL", "synchronous = NORMAL", WAL_LIMIT):
            await database.execute_fetchall(f"PRAGMA {pragma}")
        version, tables = await _numbers(database, "PRAGMA user_version", "SELECT count(*) FROM sqlite_master")
        if version == 0 and tables == 0:
            await database.executescript(f"BEGIN; {SCHEMA} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;")
        elif version != SCHEMA_VERSION:
            await self._set_aside(f"it has format {version}, this version of Slotdeck writes {SCHEMA_VERSION}")
            await self._connect()
            return
        await _numbers(database, "SELECT count(*) FROM (SELECT id FROM chunks ORDER BY first_time DESC LIMIT 1)")
        self._boot = None

    async def _insert(
        self,
        database: aiosqlite.Connection,
        frames: list[Frame],
        body: bytes,
        events: list[FrameEvent],
        ended: list[RequestRecord],
    ) -> None:
        boot = frames[-1]
        if boot.engine != self._boot:
            started = boot.time - (boot.uptime or 0.0)
            row = (boot.boot_id, started, boot.engine.model_dump_json(exclude_defaults=True))
            await database.execute("INSERT OR REPLACE INTO boots VALUES (?, ?, ?)", row)
        info = summarise(frames).model_dump() | {"body": body}
        await database.execute(_insertion("chunks", [*ChunkInfo.model_fields, "body"]), info)
        await database.executemany(
            _insertion("events", ["boot_id", *EVENT_COLUMNS]),
            [{"boot_id": boot.boot_id} | event.model_dump() for event in events],
        )
        await database.executemany(
            _insertion("requests", list(RequestRecord.model_fields)),
            [record.model_dump() for record in ended],
        )
        await database.commit()
        self._boot = boot.engine

    async def _prune(self, database: aiosqlite.Connection, now: float) -> None:
        await _forget(database, now - self._days * DAY)
        while True:
            pages, free, page_size, chunks = await _numbers(
                database,
                "PRAGMA page_count",
                "PRAGMA freelist_count",
                "PRAGMA page_size",
                "SELECT count(*) FROM chunks",
            )
            if (pages - free) * page_size <= self._bytes or chunks <= 1:
                break
            (edge,) = await _numbers(
                database, f"SELECT first_time FROM chunks ORDER BY first_time LIMIT 1 OFFSET {max(1, chunks // 50)}"
            )
            await _forget(database, edge)
        await database.executescript("PRAGMA incremental_vacuum")  # a script is run to its end, a query is not

    async def _set_aside(self, why: str) -> None:
        """Rename a file that cannot be used, over the one set aside before it, and say so."""
        await self._disconnect()
        aside = self.path.with_name(self.path.name + ".aside")
        for suffix in ("-wal", "-shm"):
            self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
        self.path.replace(aside)
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
        log.warning("%s set aside as %s: %s", self.path, aside, why)
        self._tell(f"the history could not be read ({why}): set aside as {aside}, a new one begins")

    async def _failed(self, error: Exception) -> None:
        """Stop recording; the same reason is told once."""
        await self._disconnect()
        if isinstance(error, sqlite3.Error) and _damaged(error):
            try:
                await self._set_aside(str(error))
                await self._connect()
            except (sqlite3.Error, OSError) as another:
                error = another
            else:
                return
        await self._close()
        if str(error) != self._problem:
            self._problem = str(error)
            log.warning("history is not recorded: %s", error)
            self._tell(f"history is not recorded: {error}; tried again each minute")

    async def _disconnect(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            try:
                await database.close()
            except (sqlite3.Error, ValueError):
                pass

    async def _close(self) -> None:
        await self._disconnect()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _tell(self, text: str, *, lasting: bool = True) -> None:
        """An event for those who watch now, and a note for those who come later."""
        self._engine.telemetry.log("note", text)
        others = tuple(note for note in self._engine.info.notes if note != self._note)
        self._note = text if lasting else None
        notes = (*others, text) if lasting else others
        self._engine.info = self._engine.info.model_copy(update={"notes": notes})


async def _within(seconds: float, event: asyncio.Event) -> bool:
    """True when ``event`` is set within so many seconds, and then at once."""
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False


def thinned(events: Iterable[FrameEvent], now: float, missed: int = 0) -> tuple[FrameEvent, ...]:
    """The events of one second with the excess of a flood counted instead of kept; ``missed`` ones were never seen."""
    kept: list[FrameEvent] = []
    seen: Counter[str] = Counter()
    for event in events:
        seen[event.kind] += 1
        if seen[event.kind] <= SAME_KIND_KEPT:
            kept.append(event)
    for kind, number in seen.items():
        if number > SAME_KIND_KEPT:
            text = f"and {number - SAME_KIND_KEPT} more of this kind within the same second"
            kept.append(FrameEvent(time=now, kind=kind, text=text))  # type: ignore[arg-type]
    if missed > 0:
        kept.append(FrameEvent(time=now, kind="note", text=f"{missed} further events came too fast to be recorded"))
    return tuple(kept)


def _record(event: Event, wall: float, boot_id: str) -> RequestRecord:
    request, timeline = event.request, event.request.timeline
    itl_p50, itl_p95, itl_max = percentiles(request.gaps, 50, 95, 100)
    outcome = {State.FINISHED: "finished", State.CANCELLED: "cancelled"}.get(request.state, "failed")
    return RequestRecord(
        boot_id=boot_id,
        request_id=request.id,
        user=request.user,
        ended=wall,
        outcome=outcome,
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


def _damaged(error: sqlite3.Error) -> bool:
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _take_lock(path: Path) -> IO[str]:
    """Two engines of one user must not mix their histories; the second one does without."""
    lock = path.with_name(path.name + ".lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise HistoryBusyError(f"another engine of this user records into {path}") from error
    return lock


def _insertion(table: str, names: list[str]) -> str:
    return f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join(':' + name for name in names)})"


async def _numbers(database: aiosqlite.Connection, *queries: str) -> list[int]:
    """The first value of each query's first row."""
    values = []
    for query in queries:
        (row,) = await database.execute_fetchall(query)
        values.append(row[0])
    return values


async def _forget(database: aiosqlite.Connection, before: float) -> None:
    """Delete what ended before a time."""
    for condition in ("chunks WHERE last_time", "events WHERE time", "requests WHERE ended"):
        await database.execute(f"DELETE FROM {condition} < ?", (before,))
    await database.execute("DELETE FROM boots WHERE boot_id NOT IN (SELECT boot_id FROM chunks)")
    await database.commit()
