"""Reads the history file, even while an engine writes it. Synchronous: the console calls it in a thread."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from slotdeck.engine.telemetry.frame import EngineInfo, Frame, FrameEvent
from slotdeck.engine.telemetry.history.chunks import unpack
from slotdeck.engine.telemetry.history.schema import EVENT_COLUMNS, SCHEMA_VERSION, ChunkSummary, RequestRecord

LOUD = ("preempted", "rejected", "engine_fault", "failed", "setting_changed")
"""Kinds of events to jump to: a setting changed, or something went wrong."""

MAX_CHUNK = 60.0
"""No chunk spans more seconds. It bounds the search for the chunk that holds an instant."""

CHUNKS_KEPT = 80
"""Unpacked chunks that are kept: a little more than ten minutes, so that stepping stays quick."""


class HistoryError(RuntimeError):
    """There is no history, or it cannot be read. The message says which, and what to do."""


class NoHistoryError(HistoryError):
    """No engine has recorded anything so far."""


class History:
    """One history file. It is opened anew for each query, so that the engine can set it aside at any time.

    Times are wall clock seconds since the epoch. Ranges include both ends. Every method may raise HistoryError.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._chunks: dict[tuple[int, float], list[Frame]] = {}

    def span(self) -> tuple[float, float] | None:
        """Times of the first and the last recorded frame; ``None`` if nothing is recorded yet."""
        first, last = self._rows("SELECT (SELECT min(first_time) FROM chunks), (SELECT max(last_time) FROM chunks)")[0]
        return None if first is None else (first, last)

    def chunks(self, start: float, end: float) -> list[ChunkSummary]:
        """Summaries of ten seconds each, oldest first."""
        names = ", ".join(ChunkSummary.model_fields)
        rows = self._rows(
            f"SELECT {names} FROM chunks WHERE first_time >= ? AND first_time <= ? AND last_time >= ? "
            "ORDER BY first_time",
            start - MAX_CHUNK, end, start,
        )  # fmt: skip
        return [ChunkSummary(**dict(zip(ChunkSummary.model_fields, row, strict=True))) for row in rows]

    def frames(self, start: float, end: float) -> Iterator[Frame]:
        """The recorded frames, oldest first. Chunks are unpacked as the iteration reaches them."""
        ids = self._rows(
            "SELECT id, first_time FROM chunks WHERE first_time >= ? AND first_time <= ? AND last_time >= ? "
            "ORDER BY first_time",
            start - MAX_CHUNK, end, start,
        )  # fmt: skip
        for chunk in ids:
            yield from (frame for frame in self._unpacked(chunk) if start <= frame.time <= end)

    def frame_at(self, time: float) -> Frame | None:
        """The newest frame at or before ``time``; ``None`` before the first one."""
        rows = self._rows(
            "SELECT id, first_time FROM chunks WHERE first_time <= ? ORDER BY first_time DESC LIMIT 1", time
        )
        frames = [frame for chunk in rows for frame in self._unpacked(chunk) if frame.time <= time]
        return frames[-1] if frames else None

    def step(self, time: float, direction: int) -> Frame | None:
        """The frame after (``direction`` 1) or before (-1) ``time``; ``None`` at the end."""
        order, edge = ("ASC", "last_time >") if direction > 0 else ("DESC", "first_time <")
        rows = self._rows(f"SELECT id, first_time FROM chunks WHERE {edge} ? ORDER BY first_time {order} LIMIT 1", time)
        frames = [frame for chunk in rows for frame in self._unpacked(chunk)]
        if direction > 0:
            return next((frame for frame in frames if frame.time > time), None)
        return next((frame for frame in reversed(frames) if frame.time < time), None)

    def events(
        self, start: float, end: float, kinds: Sequence[str] | None = None, last: int = 100_000
    ) -> list[FrameEvent]:
        """The newest ``last`` events of the range, oldest first."""
        chosen, values = ("", ()) if kinds is None else (f"AND kind IN ({_marks(kinds)})", tuple(kinds))
        rows = self._rows(
            f"SELECT {', '.join(EVENT_COLUMNS)} FROM events WHERE time >= ? AND time <= ? "
            f"{chosen} ORDER BY time DESC, id DESC LIMIT ?",
            start, end, *values, last,
        )  # fmt: skip
        return [_event(row) for row in reversed(rows)]

    def jump(self, time: float, direction: int, kinds: Sequence[str] = LOUD) -> FrameEvent | None:
        """The next event of one of ``kinds`` after (``direction`` 1) or before (-1) ``time``."""
        order, edge = ("ASC", ">") if direction > 0 else ("DESC", "<")
        rows = self._rows(
            f"SELECT {', '.join(EVENT_COLUMNS)} FROM events WHERE kind IN ({_marks(kinds)}) "
            f"AND time {edge} ? ORDER BY time {order} LIMIT 1",
            *kinds, time,
        )  # fmt: skip
        return _event(rows[0]) if rows else None

    def requests(self, start: float, end: float) -> list[RequestRecord]:
        """Requests that ended in the range, oldest first."""
        names = ", ".join(RequestRecord.model_fields)
        rows = self._rows(f"SELECT {names} FROM requests WHERE ended >= ? AND ended <= ? ORDER BY ended", start, end)
        return [RequestRecord(**dict(zip(RequestRecord.model_fields, row, strict=True))) for row in rows]

    def counts(self) -> dict[str, int]:
        """Numbers of recorded frames, events and requests."""
        (frames,) = self._rows("SELECT coalesce(sum(frames), 0) FROM chunks")[0]
        (events,) = self._rows("SELECT count(*) FROM events")[0]
        (requests,) = self._rows("SELECT count(*) FROM requests")[0]
        return {"frames": frames, "events": events, "requests": requests}

    def _unpacked(self, chunk: tuple[Any, ...]) -> list[Frame]:
        """The frames of a chunk, given as its id and first time. The newest chunks stay unpacked."""
        key = (chunk[0], chunk[1])
        kept = self._chunks.get(key)
        if kept is not None:
            return kept
        rows = self._rows(
            "SELECT body, engine FROM chunks JOIN bodies ON chunk_id = chunks.id "
            "JOIN boots ON boots.boot_id = chunks.boot_id WHERE chunks.id = ?",
            chunk[0],
        )
        try:
            frames = [f for body, engine in rows for f in unpack(body, EngineInfo.model_validate_json(engine))]
        except ValueError as error:
            raise HistoryError(f"{self.path} is damaged: {error}") from error
        if len(self._chunks) >= CHUNKS_KEPT:
            del self._chunks[next(iter(self._chunks))]
        self._chunks[key] = frames
        return frames

    def _rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        if not self.path.is_file():
            raise NoHistoryError(f"there is no history yet: {self.path} is written while an engine runs")
        try:
            with closing(sqlite3.connect(f"{self.path.resolve().as_uri()}?mode=ro", uri=True, timeout=5)) as database:
                (version,) = database.execute("PRAGMA user_version").fetchone()
                if version != SCHEMA_VERSION:
                    raise HistoryError(f"{self.path} was written by another version of Slotdeck (format {version})")
                return database.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise HistoryError(f"{self.path} cannot be read: {error}") from error


def _marks(values: Sequence[str]) -> str:
    return ", ".join("?" * len(values))


def _event(row: tuple[Any, ...]) -> FrameEvent:
    return FrameEvent(**dict(zip(EVENT_COLUMNS, row, strict=True)))
