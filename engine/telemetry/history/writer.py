"""Writes the history file: opens it or sets it aside, inserts rows, deletes the oldest. It knows no engine."""

from __future__ import annotations

import asyncio
import fcntl
import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import aiosqlite

from slotdeck.engine.telemetry.frame import EngineInfo, Frame, FrameEvent
from slotdeck.engine.telemetry.history.chunks import pack, summarise
from slotdeck.engine.telemetry.history.schema import EVENT_COLUMNS, SCHEMA, SCHEMA_VERSION, ChunkSummary, RequestRecord

MEGABYTE = 1_000_000
PRAGMAS = (
    "auto_vacuum = INCREMENTAL",
    "journal_mode = WAL",
    "synchronous = NORMAL",
    f"journal_size_limit = {8 * MEGABYTE}",
)
FAILURES = (sqlite3.Error, OSError)
"""What any method may raise: the disk is full, the folder is read-only, the file is damaged or was deleted."""


class HistoryBusyError(OSError):
    """Another engine of this user writes to the file."""


class HistoryWriter:
    """The file at ``path``, written by one engine at a time. Its methods raise :data:`FAILURES`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._database: aiosqlite.Connection | None = None
        self._lock: IO[str] | None = None
        self._engine: EngineInfo | None = None

    @property
    def is_open(self) -> bool:
        return self._database is not None

    async def open(self) -> str | None:
        """Open or create the file. An unusable file is set aside first, and a sentence about that is returned."""
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self._lock is None:
            self._lock = _take_lock(self.path)
        self._create()
        try:
            problem = await self._connect()
        except sqlite3.Error as error:
            if not is_damaged(error):
                raise
            problem = str(error)
        if problem is None:
            return None
        message = await self._set_aside(problem)
        await self._connect()
        return message

    async def insert(
        self, frames: Sequence[Frame], events: Sequence[FrameEvent], ended: Sequence[RequestRecord]
    ) -> None:
        """Add at least one frame of one boot, with its events and ended requests: all or nothing."""
        database = self._opened()
        if not self.path.exists():
            raise FileNotFoundError(f"{self.path} was taken away")
        body = await asyncio.to_thread(pack, frames)
        newest = frames[-1]
        if newest.engine != self._engine:
            started = newest.time - (newest.uptime or 0.0)
            row = (newest.boot_id, started, newest.engine.model_dump_json(exclude_defaults=True))
            await database.execute("INSERT OR REPLACE INTO boots VALUES (?, ?, ?)", row)
        chunk = await database.execute(
            _insertion("chunks", list(ChunkSummary.model_fields)), summarise(frames).model_dump()
        )
        await database.execute("INSERT INTO bodies VALUES (?, ?)", (chunk.lastrowid, body))
        await database.executemany(
            _insertion("events", ["boot_id", *EVENT_COLUMNS]),
            [{"boot_id": newest.boot_id} | event.model_dump() for event in events],
        )
        await database.executemany(
            _insertion("requests", list(RequestRecord.model_fields)), [record.model_dump() for record in ended]
        )
        await database.commit()
        self._engine = newest.engine

    async def prune(self, before: float, max_bytes: float) -> None:
        """Delete what ended before a time, then the oldest until the file is small enough; free the disk space."""
        await self._forget(before)
        while True:
            pages, free, page_size, chunks = await self._numbers(
                "PRAGMA page_count", "PRAGMA freelist_count", "PRAGMA page_size", "SELECT count(*) FROM chunks"
            )
            if (pages - free) * page_size <= max_bytes or chunks <= 1:
                break
            (edge,) = await self._numbers(
                f"SELECT first_time FROM chunks ORDER BY first_time LIMIT 1 OFFSET {max(1, chunks // 50)}"
            )
            await self._forget(edge)
        await self._opened().executescript("PRAGMA incremental_vacuum")  # a query would stop after the first row

    async def recover(self, error: Exception) -> str | None:
        """After a failure: set a damaged file aside, start a new one and return a sentence; else close the file."""
        if isinstance(error, sqlite3.Error) and is_damaged(error) and self._lock is not None:
            try:
                message = await self._set_aside(str(error))
                await self._connect()
            except FAILURES:
                pass
            else:
                return message
        await self.close()
        return None

    async def close(self) -> None:
        """Close the file and release its lock. Raises nothing."""
        await self._disconnect()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    # -- inside ----------------------------------------------------------------------------------------------

    def _opened(self) -> aiosqlite.Connection:
        if self._database is None:
            raise OSError(f"{self.path} is not open")
        return self._database

    def _create(self) -> None:
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))

    async def _connect(self) -> str | None:
        """Connect, and create the tables of an empty file. Returns a sentence if the file has another version."""
        database = self._database = await aiosqlite.connect(self.path, timeout=5)
        self._engine = None
        # Fetch all rows: a statement left open would block the next commit.
        for pragma in PRAGMAS:
            await database.execute_fetchall(f"PRAGMA {pragma}")
        version, tables = await self._numbers("PRAGMA user_version", "SELECT count(*) FROM sqlite_master")
        if version == 0 and tables == 0:
            await database.executescript(f"BEGIN; {SCHEMA} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;")
        elif version != SCHEMA_VERSION:
            return f"it has format {version}, this version of Slotdeck writes {SCHEMA_VERSION}"
        await self._numbers("SELECT count(*) FROM (SELECT id FROM chunks ORDER BY first_time DESC LIMIT 1)")
        return None

    async def _disconnect(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            try:
                await database.close()
            except (sqlite3.Error, ValueError):
                pass

    async def _set_aside(self, why: str) -> str:
        """Rename the file, replacing one set aside earlier; create an empty one; return a sentence that says so."""
        await self._disconnect()
        aside = self.path.with_name(self.path.name + ".aside")
        for suffix in ("-wal", "-shm"):
            self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
        self.path.replace(aside)
        self._create()
        return f"the history could not be read ({why}): set aside as {aside}, a new one begins"

    async def _numbers(self, *queries: str) -> list[int]:
        """The first value of each query's first row."""
        values = []
        for query in queries:
            (row,) = await self._opened().execute_fetchall(query)
            values.append(row[0])
        return values

    async def _forget(self, before: float) -> None:
        database = self._opened()
        old = "SELECT id FROM chunks WHERE last_time < ?"
        await database.execute(f"DELETE FROM bodies WHERE chunk_id IN ({old})", (before,))
        for condition in ("chunks WHERE last_time", "events WHERE time", "requests WHERE ended"):
            await database.execute(f"DELETE FROM {condition} < ?", (before,))
        await database.execute("DELETE FROM boots WHERE boot_id NOT IN (SELECT boot_id FROM chunks)")
        await database.commit()


def is_damaged(error: sqlite3.Error) -> bool:
    """True if the file itself is broken, rather than the disk full or the permissions wrong."""
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _take_lock(path: Path) -> IO[str]:
    """Lock the history, since two engines of one user must not mix theirs; the second one records nothing."""
    lock = path.with_name(path.name + ".lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise HistoryBusyError(f"another engine of this user records into {path}") from error
    return lock


def _insertion(table: str, names: list[str]) -> str:
    return f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join(':' + name for name in names)})"
