"""The recorder over a real loop: what is kept, what is forgotten, and that no fault of the file reaches serving."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from slotdeck.engine.telemetry.frame import Frame, FrameEvent
from slotdeck.engine.telemetry.history.chunks import pack, summarise, unpack
from slotdeck.engine.telemetry.history.reader import History, HistoryError
from slotdeck.engine.telemetry.history.recorder import SAME_KIND_KEPT, thinned
from slotdeck.engine.telemetry.history.schema import SCHEMA_VERSION
from tests.support import frames as made
from tests.support.recording import Recording

FOREVER = 4e9


@pytest.fixture
async def recording(tmp_path: Path) -> AsyncIterator[Recording]:
    made = Recording(tmp_path / "state" / "history.db")
    await made.recorder.open()
    yield made
    await made.close()


async def test_everything_that_happened_comes_back(recording: Recording) -> None:
    await recording.serve("a", "b")
    recording.recorder.take_frame()
    await recording.serve("c")
    recording.bench.loop.change({"slots": 1}, revision=None, source="test")
    await recording.write()

    frames = list(recording.history.frames(0, FOREVER))
    assert [frame.counters.finished for frame in frames] == [2, 3]
    assert [frame.limits.slots for frame in frames] == [2, 1]
    assert frames[-1].engine == recording.bench.loop.info
    assert frames[-1].boot_id == recording.bench.loop.boot_id
    events = recording.history.events(0, FOREVER)
    assert tuple(events) == recording.bench.loop.telemetry.events_since(0)[0]
    requests = {record.request_id: record for record in recording.history.requests(0, FOREVER)}
    assert set(requests) == {"a", "b", "c"}
    record = requests["a"]
    assert (record.outcome, record.finish_reason, record.user) == ("finished", "length", "a")
    assert (record.prompt_tokens, record.output_tokens, record.preemptions) == (30, 20, 0)
    assert record.ttft is not None
    assert record.ttft == pytest.approx((record.intake or 0) + (record.queue_wait or 0) + (record.prefill or 0))
    assert record.ttft <= (record.duration or 0)
    assert recording.history.counts() == {"frames": 2, "events": len(events), "requests": 3}


async def test_a_request_cancelled_in_the_queue_is_kept_without_numbers_it_never_had(recording: Recording) -> None:
    recording.bench.runner.allow(0)
    recording.bench.submit("a", output=200)
    recording.bench.steps(0)
    recording.bench.submit("b")
    recording.bench.submit("c")
    recording.bench.loop.cancel("c")
    await recording.write()
    (record,) = recording.history.requests(0, FOREVER)
    assert (record.request_id, record.outcome, record.output_tokens) == ("c", "cancelled", 0)
    assert (record.ttft, record.queue_wait, record.itl_p95, record.slot) == (None, None, None, None)


async def test_steps_jumps_and_the_picture_at_an_instant(recording: Recording) -> None:
    pictures = [made.frame(time=made.START + i, sequence=i, events=()) for i in range(30)]
    for start in (0, 10, 20):
        recording.recorder._frames = pictures[start : start + 10]
        recording.recorder._events = [FrameEvent(time=made.START + start, kind="preempted", text=f"number {start}")]
        await recording.recorder.write()
    history = recording.history
    assert history.span() == (made.START, made.START + 29)

    def second(frame: Frame | None) -> float | None:
        return None if frame is None else frame.time - made.START

    assert second(history.frame_at(made.START + 14.5)) == 14
    assert history.frame_at(made.START - 1) is None
    assert second(history.step(made.START + 9, 1)) == 10
    assert second(history.step(made.START + 10, -1)) == 9
    assert history.step(made.START + 29, 1) is None
    assert history.step(made.START, -1) is None
    jumped = history.jump(made.START + 5, 1)
    assert jumped is not None
    assert jumped.text == "number 10"
    back = history.jump(made.START + 5, -1)
    assert back is not None
    assert back.text == "number 0"
    assert history.jump(made.START + 25, 1) is None
    assert [chunk.frames for chunk in history.chunks(made.START + 9, made.START + 15)] == [10, 10]
    assert [second(f) for f in history.frames(made.START + 8, made.START + 11)] == [8, 9, 10, 11]


def test_a_chunk_gives_its_frames_back_and_is_small() -> None:
    frames = [made.busy(step * 4) for step in range(10)]
    body = pack(frames)
    assert len(body) < 1500 * len(frames)
    back = unpack(body, made.ENGINE)
    assert [frame.slots[3].gaps for frame in back] == [
        tuple(round(gap, 5) for gap in frame.slots[3].gaps) for frame in frames
    ]
    assert [frame.counters for frame in back] == [frame.counters for frame in frames]
    info = summarise(frames)
    assert (info.frames, info.running, info.waiting) == (10, 20, 0)
    with pytest.raises(ValueError, match="damaged"):
        unpack(body[:40], made.ENGINE)


async def test_what_is_no_database_is_set_aside_with_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    path.write_bytes(b"this is not a database, " * 500)
    recording = Recording(path)
    await recording.recorder.open()
    await recording.serve("a")
    await recording.write()
    assert (tmp_path / "history.db.aside").read_bytes().startswith(b"this is not")
    assert [record.request_id for record in recording.history.requests(0, FOREVER)] == ["a"]
    (note,) = recording.notes()
    assert "set aside as" in note
    assert recording.bench.loop.frame(1, 0)[0].engine.notes[-1] == note
    await recording.close()


async def test_a_file_damaged_while_it_is_written_is_set_aside_too(recording: Recording) -> None:
    for _ in range(40):
        recording.bench.loop.telemetry.log("finished", "x" * 2000)
        await recording.write(2)
    await recording.recorder._writer._disconnect()
    size = recording.recorder.path.stat().st_size
    with recording.recorder.path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (size - 4096))
    await recording.recorder.open()
    await recording.serve("a")
    await recording.write()
    await recording.serve("b")
    await recording.write()
    assert "b" in {record.request_id for record in recording.history.requests(0, FOREVER)}
    assert len([note for note in recording.notes() if "set aside" in note]) == 1


async def test_a_file_of_another_version_is_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    with sqlite3.connect(path) as other:
        other.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
        other.execute("CREATE TABLE things (id INTEGER)")
    other.close()
    with pytest.raises(HistoryError, match="another version"):
        History(path).span()
    recording = Recording(path)
    await recording.recorder.open()
    await recording.write()
    assert recording.history.counts()["frames"] == 1
    assert "format" in recording.notes()[0]
    await recording.close()


async def test_a_full_disk_stops_recording_with_one_event_and_it_resumes(recording: Recording) -> None:
    recorder = recording.recorder
    assert recorder._writer._database is not None
    await recorder._writer._database.execute("PRAGMA max_page_count = 20")
    for _ in range(30):
        recording.bench.loop.telemetry.log("finished", "x" * 3000)
        await recording.write()
    await recording.serve("a")
    assert not recorder.recording
    (note,) = recording.notes()
    assert "history is not recorded: database or disk is full" in note
    assert note in recording.bench.loop.frame(1, 0)[0].engine.notes

    await recorder.open()
    await recording.serve("b")
    await recording.write()
    assert recording.notes()[1:] == ["history is recorded again"]
    assert recording.bench.loop.frame(1, 0)[0].engine.notes == ()
    assert [record.request_id for record in recording.history.requests(0, FOREVER)][-1] == "b"


async def test_a_folder_that_cannot_be_written_is_said_once(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file where the folder should be")
    recording = Recording(tmp_path / "state" / "history.db")
    for _ in range(3):
        await recording.recorder.open()
        await recording.write()
    await recording.serve("a")
    assert len(recording.notes()) == 1
    await recording.close()


async def test_a_second_engine_leaves_the_file_alone(recording: Recording) -> None:
    other = Recording(recording.recorder.path)
    await other.recorder.open()
    assert not other.recorder.recording
    assert "another engine of this user records" in other.notes()[0]
    await recording.recorder.close()
    await other.recorder.open()
    assert other.recorder.recording
    await other.close()


async def test_a_file_taken_away_is_begun_anew(recording: Recording) -> None:
    await recording.write()
    recording.recorder.path.unlink()
    await recording.write()
    await recording.recorder.open()
    await recording.write()
    assert recording.history.counts()["frames"] == 1


async def test_the_oldest_goes_by_age(recording: Recording) -> None:
    await recording.serve("a")
    await recording.write()
    with recording.tables() as tables:
        for change in ("chunks SET first_time = 5, last_time = 9", "events SET time = 5", "requests SET ended = 5"):
            tables.execute(f"UPDATE {change}")
    tables.close()
    await recording.serve("b")
    await recording.write()
    await recording.recorder.prune()
    assert [record.request_id for record in recording.history.requests(0, FOREVER)] == ["b"]
    assert recording.history.counts()["frames"] == 1
    assert all(event.user != "a" for event in recording.history.events(0, FOREVER))
    with recording.tables() as tables:
        assert tables.execute("SELECT count(*) FROM bodies").fetchone() == (1,)
    tables.close()


async def test_the_oldest_goes_by_size_and_the_file_shrinks(tmp_path: Path) -> None:
    recording = Recording(tmp_path / "history.db", megabytes=0.2)
    await recording.recorder.open()
    for number in range(300):
        recording.bench.loop.telemetry.log("finished", f"{number} " + "x" * 3000)
        await recording.write()
    await recording.recorder.prune()
    texts = [event.text.split()[0] for event in recording.history.events(0, FOREVER)]
    assert texts[-1] == "299"
    assert 10 < len(texts) < 100
    await recording.close()
    assert recording.recorder.path.stat().st_size < 300_000


def test_a_flood_of_one_kind_is_counted_and_not_kept() -> None:
    flood = [FrameEvent(time=1.0, kind="rejected", text=f"refused {i}") for i in range(400)]
    one = FrameEvent(time=1.0, kind="finished", text="a finished")
    kept = thinned([*flood, one], 2.0, missed=7)
    assert one in kept
    assert len(kept) == SAME_KIND_KEPT + 3
    assert f"and {400 - SAME_KIND_KEPT} more" in kept[-2].text
    assert "7 further events" in kept[-1].text


async def test_it_runs_by_itself_and_keeps_the_last_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slotdeck.engine.telemetry.history.recorder.FRAME_SECONDS", 3600.0)
    recording = Recording(tmp_path / "history.db")
    stopping = asyncio.Event()
    task = asyncio.create_task(recording.recorder.run(stopping))
    await recording.serve("a")
    stopping.set()
    await task
    assert recording.history.counts()["frames"] == 1
    assert [record.request_id for record in recording.history.requests(0, FOREVER)] == ["a"]
    assert recording.bench.loop.telemetry.on_ended is None
    await recording.close()


async def test_a_fault_of_the_recorder_itself_never_leaves_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recording = Recording(tmp_path / "history.db")
    stopping = asyncio.Event()
    stopping.set()

    def broken(*_: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("slotdeck.engine.telemetry.history.writer.pack", broken)
    recording.recorder.take_frame()
    await recording.recorder.run(stopping)
    assert "fault of the recorder" in recording.notes()[0]
    await recording.serve("a")
    await recording.close()


def test_no_history_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match="no history yet"):
        History(tmp_path / "history.db").span()


def test_a_killed_engine_loses_nothing_that_was_written(tmp_path: Path) -> None:
    code = """
import asyncio, os, signal, sys
from pathlib import Path
from tests.support.recording import Recording

async def main():
    recording = Recording(Path(sys.argv[1]))
    await recording.recorder.open()
    await recording.serve("a")
    for _ in range(5):
        await recording.write(2)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""
    path = tmp_path / "history.db"
    killed = subprocess.run([sys.executable, "-c", code, str(path)], check=False, timeout=60)
    assert killed.returncode == -signal.SIGKILL
    assert History(path).counts()["frames"] == 10
    assert [record.request_id for record in History(path).requests(0, FOREVER)] == ["a"]
