"""The history file (SQLite): its tables, and how frames are packed into it. Written by the recorder, read by History.

Ten seconds of frames are one chunk: a few numbers, and apart from them the compressed frames, so that a day can be
looked over without reading those. There is no prompt text in it: nothing recorded holds any.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from slotdeck.engine.paths import state_folder
from slotdeck.engine.telemetry.frame import EngineInfo, Frame, Part

SCHEMA_VERSION = 1
"""``PRAGMA user_version`` of the file. A file of another version is not read and not written."""

SCHEMA = """
CREATE TABLE boots (boot_id TEXT PRIMARY KEY, started REAL NOT NULL, engine TEXT NOT NULL);
CREATE TABLE chunks (
  id INTEGER PRIMARY KEY, boot_id TEXT NOT NULL, first_time REAL NOT NULL, last_time REAL NOT NULL,
  frames INTEGER NOT NULL, running INTEGER, waiting INTEGER, live REAL, generated REAL, ttft_p95 REAL, itl_p95 REAL,
  os_swap REAL);
CREATE INDEX chunks_first ON chunks (first_time);
CREATE INDEX chunks_last ON chunks (last_time);
CREATE TABLE bodies (chunk_id INTEGER PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE events (
  id INTEGER PRIMARY KEY, boot_id TEXT NOT NULL, time REAL NOT NULL, kind TEXT NOT NULL, text TEXT NOT NULL,
  request_id TEXT, user TEXT, slot INTEGER);
CREATE INDEX events_time ON events (time);
CREATE INDEX events_kind ON events (kind, time);
CREATE TABLE requests (
  id INTEGER PRIMARY KEY, boot_id TEXT NOT NULL, request_id TEXT NOT NULL, user TEXT, ended REAL NOT NULL,
  outcome TEXT NOT NULL, finish_reason TEXT, failure TEXT, slot INTEGER, prompt_tokens INTEGER, output_tokens INTEGER,
  max_tokens INTEGER, intake REAL, queue_wait REAL, prefill REAL, ttft REAL, duration REAL, itl_p50 REAL, itl_p95 REAL,
  itl_max REAL, preemptions INTEGER, recomputed_tokens INTEGER, stalled REAL);
CREATE INDEX requests_ended ON requests (ended);
"""

EVENT_COLUMNS = ("time", "kind", "text", "request_id", "user", "slot")
"""What is kept of a :class:`~slotdeck.engine.telemetry.frame.FrameEvent`."""

DIGITS = 5
"""Decimals kept of every number: a hundredth of a millisecond."""


class RequestRecord(Part):
    """One request that ended, as it is kept. Durations in seconds, ``ended`` wall clock."""

    boot_id: str
    request_id: str
    user: str | None = None
    ended: float
    outcome: str
    """``finished``, ``cancelled`` or ``failed``."""
    finish_reason: str | None = None
    failure: str | None = None
    slot: int | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    max_tokens: int | None = None
    intake: float | None = None
    queue_wait: float | None = None
    prefill: float | None = None
    ttft: float | None = None
    duration: float | None = None
    """Arrival to end."""
    itl_p50: float | None = None
    itl_p95: float | None = None
    itl_max: float | None = None
    preemptions: int | None = None
    recomputed_tokens: int | None = None
    stalled: float | None = None


class ChunkInfo(Part):
    """About ten seconds of one engine at a glance. Highest of the chunk, but ``generated`` is the mean."""

    boot_id: str
    first_time: float
    last_time: float
    frames: int
    running: int | None = None
    waiting: int | None = None
    live: float | None = None
    """Live part of the KV pool, 0 to 1."""
    generated: float | None = None
    """Tokens per second."""
    ttft_p95: float | None = None
    itl_p95: float | None = None
    os_swap: float | None = None
    """Bytes per second, in and out together."""


def history_path() -> Path:
    """Where this user's engine records."""
    return state_folder() / "history.db"


def summarise(frames: Sequence[Frame]) -> ChunkInfo:
    """The numbers that stand beside a chunk of at least one frame."""

    def highest(values: Iterator[float | None]) -> float | None:
        return max((value for value in values if value is not None), default=None)

    generated = [frame.generated_per_second for frame in frames if frame.generated_per_second is not None]
    fills = (f.pool.live / f.pool.total if f.pool.live is not None and f.pool.total else None for f in frames)
    running, waiting = highest(f.running for f in frames), highest(f.waiting_count for f in frames)
    return ChunkInfo(
        boot_id=frames[0].boot_id,
        first_time=frames[0].time,
        last_time=frames[-1].time,
        frames=len(frames),
        running=None if running is None else int(running),
        waiting=None if waiting is None else int(waiting),
        live=highest(fills),
        generated=sum(generated) / len(generated) if generated else None,
        ttft_p95=frames[-1].minute.ttft_p95,
        itl_p95=frames[-1].minute.itl_p95,
        os_swap=highest(
            None if (f.host.os_swap_in is None and f.host.os_swap_out is None)
            else (f.host.os_swap_in or 0.0) + (f.host.os_swap_out or 0.0)
            for f in frames
        ),
    )  # fmt: skip


def pack(frames: Sequence[Frame]) -> bytes:
    """Frames of one boot as a chunk, without what :class:`EngineInfo` says, which is kept once."""
    rows = [_rounded(frame.model_dump(exclude_defaults=True, exclude={"engine"})) for frame in frames]
    return zlib.compress("\n".join(json.dumps(row, separators=(",", ":")) for row in rows).encode())


def unpack(body: bytes, engine: EngineInfo) -> list[Frame]:
    """The frames of a chunk. Raises ValueError when it is damaged."""
    try:
        lines = zlib.decompress(body).splitlines()
    except zlib.error as error:
        raise ValueError(f"a damaged chunk: {error}") from error
    return [Frame.model_validate(json.loads(line) | {"engine": engine}) for line in lines]


def _rounded(value: Any) -> Any:
    kind = type(value)
    if kind is float:
        return round(value, DIGITS)
    if kind is dict:
        return {name: _rounded(item) for name, item in value.items()}
    if kind in (tuple, list):
        return [_rounded(item) for item in value]
    return value
