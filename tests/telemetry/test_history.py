"""The history file: what a chunk sums up, and what its reader finds at the edges of a range."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from slotdeck.engine.core.events import Event, EventKind
from slotdeck.engine.core.request import Request, SamplingParams, State, Timeline
from slotdeck.engine.telemetry.frame import CounterInfo, Frame, FrameEvent, HostInfo, PoolInfo
from slotdeck.engine.telemetry.history import recorder as recorder_module
from slotdeck.engine.telemetry.history.chunks import pack, summarise, unpack
from slotdeck.engine.telemetry.history.reader import History, HistoryError, NoHistoryError
from slotdeck.engine.telemetry.history.recorder import Recorder, open_recorder, record_of
from slotdeck.engine.telemetry.history.schema import RequestRecord
from slotdeck.engine.telemetry.history.writer import HistoryWriter, is_damaged
from slotdeck.engine.telemetry.telemetry import Telemetry
from tests.support import frames as made
from tests.support.doctor_frames import frame as plain_frame

START = made.START


def test_a_chunk_holds_the_highest_of_its_frames_and_the_mean_rate() -> None:
    def one(second: int, running: int | None, waiting: int, live: int | None, rate: float | None) -> Frame:
        frame = plain_frame(second, running=running, waiting_count=waiting, generated_per_second=rate)
        minute = frame.minute.model_copy(update={"ttft_p95": 1.0 + second, "itl_p95": 0.1 + second})
        host = HostInfo(os_swap_in=None if second == 0 else 5.0 * second, os_swap_out=3.0 if second < 2 else None)
        pool = PoolInfo(total=1000, live=live)
        return frame.model_copy(update={"minute": minute, "host": host, "pool": pool})

    summary = summarise([one(0, 2, 7, 300, 10.0), one(1, 5, 1, 900, None), one(2, None, 3, None, 40.0)])
    assert (summary.boot_id, summary.frames) == ("one", 3)
    assert summary.last_time - summary.first_time == 2
    assert (summary.running, summary.waiting, summary.live) == (5, 7, 0.9)
    assert summary.generated == 25.0
    assert (summary.ttft_p95, summary.itl_p95) == (3.0, 2.1)
    assert summary.os_swap == 10.0, "3, 5 + 3 and 10"


def test_a_chunk_of_frames_that_know_nothing_has_no_numbers() -> None:
    bare = plain_frame(running=None, waiting_count=None, generated_per_second=None)
    bare = bare.model_copy(update={"host": HostInfo(), "pool": PoolInfo(total=0, live=0)})
    summary = summarise([bare])
    assert (summary.running, summary.waiting, summary.live, summary.generated, summary.os_swap) == (None,) * 5


def test_numbers_are_kept_to_a_hundredth_of_a_millisecond() -> None:
    frame = plain_frame(generated_per_second=1.23456789, uptime=2.0)
    (back,) = unpack(pack([frame]), frame.engine)
    assert back.generated_per_second == 1.23457
    assert back.slots == frame.slots
    with pytest.raises(ValueError, match="damaged"):
        unpack(b"no zlib", frame.engine)


def frames(first: int, last: int) -> list[Frame]:
    return [made.frame(time=START + second, sequence=second, events=()) for second in range(first, last)]


@pytest.fixture
async def history(tmp_path: Path) -> History:
    """Three chunks of ten seconds, with an event at 0, 10 and 20 and a request that ended at 9 and 19."""
    writer = HistoryWriter(tmp_path / "history.db")
    await writer.open()
    for first in (0, 10, 20):
        kinds = {0: "preempted", 10: "finished", 20: "rejected"}
        events = [FrameEvent(time=START + first, kind=kinds[first], text=f"event {first}")]
        ended = [RequestRecord(boot_id="boot-1", request_id=f"r{first}", ended=START + first + 9, outcome="finished")]
        await writer.insert(frames(first, first + 10), events, ended if first < 20 else [])
    await writer.close()
    return History(tmp_path / "history.db")


def seconds(found: list[Frame]) -> list[int]:
    return [round(frame.time - START) for frame in found]


def test_ranges_hold_both_their_ends(history: History) -> None:
    assert history.span() == (START, START + 29)
    assert seconds(list(history.frames(START + 9, START + 11))) == [9, 10, 11]
    assert seconds(list(history.frames(START + 29, START + 99))) == [29]
    assert list(history.frames(START + 30, START + 99)) == []
    assert [chunk.first_time - START for chunk in history.chunks(START + 10, START + 20)] == [10, 20]
    assert [chunk.first_time - START for chunk in history.chunks(START + 9, START + 9)] == [0]
    assert [event.text for event in history.events(START, START + 10)] == ["event 0", "event 10"]
    assert [event.text for event in history.events(START, START + 99, kinds=("rejected", "preempted"))] == [
        "event 0", "event 20",
    ]  # fmt: skip
    assert [event.text for event in history.events(START, START + 99, last=2)] == ["event 10", "event 20"]
    assert [record.request_id for record in history.requests(START + 9, START + 19)] == ["r0", "r10"]
    assert [record.request_id for record in history.requests(START + 9.5, START + 18.9)] == []
    assert history.counts() == {"frames": 30, "events": 3, "requests": 2}


def test_a_frame_at_an_instant_is_the_newest_at_or_before_it(history: History) -> None:
    def at(second: float) -> float | None:
        frame = history.frame_at(START + second)
        return None if frame is None else frame.time - START

    assert [at(second) for second in (-0.1, 0, 9.9, 10, 14.5, 29, 1000)] == [None, 0, 9, 10, 14, 29, 29]


def test_one_steps_and_jumps_over_the_edges_of_chunks(history: History) -> None:
    def step(second: float, direction: int) -> float | None:
        frame = history.step(START + second, direction)
        return None if frame is None else frame.time - START

    assert [step(second, 1) for second in (-5, 8.5, 9, 28, 29)] == [0, 9, 10, 29, None]
    assert [step(second, -1) for second in (99, 10.5, 10, 1, 0)] == [29, 10, 9, 0, None]

    def jump(second: float, direction: int) -> str | None:
        event = history.jump(START + second, direction)
        return None if event is None else event.text

    assert [jump(second, 1) for second in (-1, 0, 19, 20)] == ["event 0", "event 20", "event 20", None]
    assert [jump(second, -1) for second in (99, 20, 10, 0)] == ["event 20", "event 0", "event 0", None]
    assert history.jump(START + 5, 1, kinds=("finished",)) is not None


def test_unpacked_chunks_are_kept_but_not_all(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slotdeck.engine.telemetry.history.reader.CHUNKS_KEPT", 2)
    for second in (5, 15, 25):
        assert history.frame_at(START + second) is not None
    assert len(history._chunks) == 2
    kept = history.frame_at(START + 25)
    assert history.frame_at(START + 25) is kept
    again = history.frame_at(START + 5)
    assert again is not None
    assert (again.sequence, len(again.slots)) == (5, len(made.frame().slots))


def test_what_cannot_be_read_says_so(tmp_path: Path) -> None:
    with pytest.raises(NoHistoryError, match="there is no history yet"):
        History(tmp_path / "history.db").counts()
    (tmp_path / "history.db").write_bytes(b"no database" * 1000)
    with pytest.raises(HistoryError, match="cannot be read"):
        History(tmp_path / "history.db").counts()


async def test_a_damaged_chunk_says_so(history: History) -> None:
    with sqlite3.connect(history.path) as tables:
        tables.execute("UPDATE bodies SET body = x'00'")
    tables.close()
    with pytest.raises(HistoryError, match="is damaged"):
        history.frame_at(START)


def ended(**changes: object) -> Event:
    timeline = Timeline(arrival=10.0, queued=10.5, scheduled=12.0, first_token=13.25, last_token=18.0, ended=19.0)
    request = Request("r", "ann", [1] * 7, SamplingParams(max_tokens=30), timeline)
    request.gaps = [0.1, 0.2, 0.9]
    request.token_ids += [2] * 4
    request.state, request.slot = State.FINISHED, 3
    request.num_preemptions, request.recomputed_tokens, request.stalled = 2, 55, 1.75
    for name, value in changes.items():
        setattr(request, name, value)
    return Event(EventKind.FINISHED, request, 20.0)


def test_the_record_of_a_request_has_each_of_its_numbers() -> None:
    record = record_of(ended(), 777.0, "boot")
    assert (record.boot_id, record.request_id, record.user, record.ended) == ("boot", "r", "ann", 777.0)
    assert (record.outcome, record.slot, record.failure) == ("finished", 3, None)
    assert (record.prompt_tokens, record.output_tokens, record.max_tokens) == (7, 4, 30)
    assert (record.intake, record.queue_wait, record.prefill, record.ttft) == (0.5, 1.5, 1.25, 3.25)
    assert record.duration == 10.0, "from its arrival, so with the intake, to its end"
    assert (record.itl_p50, record.itl_max) == (0.2, 0.9)
    assert record.itl_p95 == pytest.approx(0.83)
    assert (record.preemptions, record.recomputed_tokens, record.stalled) == (2, 55, 1.75)


class Scripted:
    """An engine whose frames a test decides: how many requests run in each."""

    def __init__(self, *running: int) -> None:
        self.telemetry = Telemetry(lambda: 0.0, lambda: START)
        self.running = list(running)
        self.asked: list[tuple[int, int]] = []

    def frame(self, sequence: int, event_cursor: int) -> tuple[Frame, int]:
        self.asked.append((sequence, event_cursor))
        events, cursor = self.telemetry.events_since(event_cursor)
        running = self.running.pop(0) if self.running else 0
        frame = made.frame(time=START + sequence, sequence=sequence, running=running, events=events)
        return frame.model_copy(update={"counters": CounterInfo()}), cursor


async def recorded(monkeypatch: pytest.MonkeyPatch, engine: Scripted, path: Path, looks: int) -> list[int]:
    """How many frames each write held, when the recorder looks so often and then stops."""
    recorder = Recorder(engine, path, days=3650, megabytes=100)
    stopping, written = asyncio.Event(), []
    insert = HistoryWriter.insert

    async def within(_seconds: float, _event: asyncio.Event) -> bool:
        return len(engine.asked) >= looks

    async def counted(self: HistoryWriter, frames: list[Frame], *rest: object) -> None:
        written.append(len(frames))
        await insert(self, frames, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(recorder_module, "_within", within)
    monkeypatch.setattr(HistoryWriter, "insert", counted)
    await recorder.run(stopping)
    return written


async def test_frames_are_written_ten_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Scripted()
    assert await recorded(monkeypatch, engine, tmp_path / "history.db", 24) == [10, 10, 5]
    assert [sequence for sequence, _ in engine.asked] == list(range(1, 26))


async def test_the_first_frame_in_which_somebody_is_served_is_written_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Scripted(0, 0, 1, 1, 1, 0, 1, 1)
    assert await recorded(monkeypatch, engine, tmp_path / "history.db", 8) == [3, 4, 2]


async def test_the_file_is_pruned_or_tried_again_once_a_minute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pruned, opened = [], []

    async def prune(self: HistoryWriter, before: float, max_bytes: float) -> None:
        pruned.append((before, max_bytes))

    monkeypatch.setattr(HistoryWriter, "prune", prune)
    engine = Scripted()
    await recorded(monkeypatch, engine, tmp_path / "history.db", 125)
    assert pruned == [(START + 60 - 3650 * 86_400, 100e6), (START + 120 - 3650 * 86_400, 100e6)]

    (tmp_path / "file").write_text("no folder")
    open_file = Recorder.open

    async def counted(self: Recorder) -> None:
        opened.append(True)
        await open_file(self)

    monkeypatch.setattr(Recorder, "open", counted)
    await recorded(monkeypatch, Scripted(), tmp_path / "file" / "history.db", 125)
    assert len(opened) == 3, "at first and after each minute"


def test_no_recorder_when_no_days_are_to_be_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from slotdeck.engine.settings import StartSettings

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert open_recorder(Scripted(), StartSettings(history_days=0)) is None
    recorder = open_recorder(Scripted(), StartSettings(history_days=2, history_size=30))
    assert recorder is not None
    assert recorder.path == tmp_path / "slotdeck" / "history.db"
    assert (recorder._days, recorder._bytes) == (2, 30_000_000)


def test_damage_is_told_from_a_full_disk() -> None:
    def error(code: int) -> sqlite3.Error:
        made = sqlite3.DatabaseError("x")
        made.sqlite_errorcode = code
        return made

    assert is_damaged(error(sqlite3.SQLITE_CORRUPT))
    assert is_damaged(error(sqlite3.SQLITE_NOTADB))
    assert is_damaged(error(sqlite3.SQLITE_CORRUPT_INDEX)), "an extended code"
    assert not is_damaged(error(sqlite3.SQLITE_FULL))
    assert not is_damaged(error(sqlite3.SQLITE_READONLY))
    assert not is_damaged(sqlite3.ProgrammingError("closed"))


async def test_the_engine_is_kept_once_for_each_start_and_anew_when_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    writer = HistoryWriter(path)
    await writer.open()
    assert (path.stat().st_mode & 0o777) == 0o600, "it says who asked when"
    await writer.insert([made.frame(uptime=100.0, time=START)], [], [])
    noted = made.ENGINE.model_copy(update={"notes": ("history is not recorded",)})
    await writer.insert([made.frame(uptime=160.0, time=START + 60, engine=noted)], [], [])
    with sqlite3.connect(path) as tables:
        boots = tables.execute("SELECT boot_id, started FROM boots").fetchall()
    tables.close()
    assert boots == [("boot-1", START - 100)]
    await writer.close()
    assert History(path).frame_at(START + 60).engine == noted  # type: ignore[union-attr]


async def test_what_is_pruned_is_gone_for_every_reader_with_the_starts_that_nothing_is_left_of(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    writer = HistoryWriter(path)
    await writer.open()
    await writer.insert([made.frame(boot_id="old", time=START)], [], [])
    engine = made.ENGINE.model_copy(update={"pid": 2})
    await writer.insert([made.frame(boot_id="new", time=START + 100, engine=engine)], [], [])
    await writer.prune(START + 50, 1e9)
    with sqlite3.connect(path) as tables:
        kept = [tables.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in ("chunks", "bodies", "boots")]
        assert kept == [1, 1, 1], "committed, so that another connection sees it"
        assert tables.execute("SELECT boot_id FROM boots").fetchall() == [("new",)]
    tables.close()
    await writer.prune(START + 100, 1.0)
    assert History(path).counts()["frames"] == 1, "the newest chunk stays, however small the limit"
    await writer.close()
