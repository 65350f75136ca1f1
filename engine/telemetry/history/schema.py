"""The tables of the history file (SQLite) and the rows that are read from them.

A chunk is about ten seconds of frames: one row with a few numbers, and apart from it the compressed frames. So a whole
day can be shown without reading the frames. The file holds no text of prompts or answers.
"""

from __future__ import annotations

from slotdeck.engine.telemetry.frame import Part

WRITE_SECONDS = 10.0
"""The recorder writes at least this often while an engine runs."""

SCHEMA_VERSION = 1
"""``PRAGMA user_version`` of the file. A file with another version is neither read nor written."""

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
"""The columns of a :class:`~slotdeck.engine.telemetry.frame.FrameEvent`."""


class RequestRecord(Part):
    """One ended request. Durations are in seconds; ``ended`` is the wall clock."""

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


class ChunkSummary(Part):
    """A summary of about ten seconds of one engine: the highest values, except for the mean of ``generated``."""

    boot_id: str
    first_time: float
    last_time: float
    frames: int
    running: int | None = None
    waiting: int | None = None
    live: float | None = None
    """Share of the KV pool held by requests, 0 to 1."""
    generated: float | None = None
    """Tokens per second."""
    ttft_p95: float | None = None
    itl_p95: float | None = None
    os_swap: float | None = None
    """Bytes per second, in and out together."""
