"""The admin API over a unix socket and recordings, as sources."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from slotdeck.console.hosting.process import record_end
from slotdeck.console.sources.base import Disconnected, EngineEnd, Past, Update
from slotdeck.console.sources.engine import FIRST_PAUSE, MAX_PAUSE, EngineSource
from slotdeck.console.sources.recording import RecordingSource, read_frames, write_frames
from slotdeck.engine.telemetry.frame import Frame, WindowInfo
from tests.support import frames
from tests.support.frame_engine import FrameEngine


@pytest.fixture
def socket(tmp_path: Path) -> Path:
    return tmp_path / "engine.sock"


async def take(updates: AsyncIterator[Update], number: int) -> list[Update]:
    async with asyncio.timeout(10):
        return [await anext(updates) for _ in range(number)]


async def test_frames_come_in_order_over_the_socket(socket: Path) -> None:
    async with FrameEngine(socket, frames.busy) as engine:
        engine.rate = 200
        got = await take(EngineSource(socket).updates(), 5)
    assert [update.sequence for update in got if isinstance(update, Frame)] == [0, 1, 2, 3, 4]
    assert ("GET", "/admin/stream?rate=4", None) in engine.calls


async def test_a_label_with_line_separators_does_not_break_the_stream(socket: Path) -> None:
    odd = frames.decoding(0, "a\u2028b\u2029c\x85d", 10, 5)
    async with FrameEngine(socket, lambda _step: frames.frame(slots=(odd,))) as engine:
        engine.rate = 200
        got = await take(EngineSource(socket).updates(), 2)
    assert all(isinstance(update, Frame) and update.slots[0].user == odd.user for update in got)


async def test_reconnects_with_growing_pauses_and_sees_the_restart(socket: Path) -> None:
    pauses: list[float] = []
    engine: FrameEngine | None = None

    async def sleep(seconds: float) -> None:
        nonlocal engine
        pauses.append(seconds)
        if len(pauses) == 7:
            engine = await FrameEngine(socket, boot="boot-2").__aenter__()

    updates = EngineSource(socket, sleep=sleep).updates()
    got = await take(updates, 8)
    lost, frame = got[:7], got[7]
    assert all(isinstance(x, Disconnected) and f"no engine answers at {socket}" == x.reason for x in lost)
    assert isinstance(frame, Frame)
    assert frame.boot_id == "boot-2"
    assert pauses[0] == FIRST_PAUSE
    assert pauses == sorted(pauses)
    assert pauses[-1] == MAX_PAUSE
    assert engine is not None
    await engine.stop()
    [gone] = await take(updates, 1)
    assert isinstance(gone, Disconnected)


async def test_settings_change_with_revision_conflict_and_refusal(socket: Path) -> None:
    async with FrameEngine(socket) as engine:
        source = EngineSource(socket)
        accepted = await source.change({"slots": 8}, 3)
        assert accepted.ok
        assert accepted.revision == 4
        assert engine.calls[-1][2] == {"changes": {"slots": 8}, "source": "console", "revision": 3}
        stale = await source.change({"slots": 2}, 3)
        assert not stale.ok
        assert stale.conflict
        refused = await source.change({"slots": 99}, None)
        assert not refused.ok
        assert refused.message == "slots: at most 64 fit this pool"
        assert (await source.cancel("a/b c")).ok
        assert engine.calls[-1][1] == "/admin/requests/a%2Fb%20c/cancel"
        assert (await source.shutdown(False)).ok
        assert engine.calls[-1] == ("POST", "/admin/shutdown", {"force": False})


async def test_commands_without_an_engine_answer_instead_of_raising(socket: Path) -> None:
    answer = await EngineSource(socket).change({"slots": 8}, None)
    assert not answer.ok
    assert "no engine answers" in (answer.message or "")


def told(socket: Path, pid: int | None) -> FrameEngine:
    """An engine that says it is process ``pid``."""
    steady = frames.steady()
    engine = steady.engine.model_copy(update={"pid": pid})
    return FrameEngine(socket, lambda _step: steady.model_copy(update={"engine": engine, "event_cursor": 17}))


@pytest.mark.parametrize(
    ("code", "how"),
    [(-9, "signal 9, out of memory?"), (70, "exit code 70, a step hung"), (0, "it was stopped"), (None, "")],
)
async def test_a_dead_engine_is_distinguished_from_a_lost_connection(socket: Path, code: int | None, how: str) -> None:
    process = await asyncio.create_subprocess_exec("sleep", "60")
    log = socket.with_name("engine.log")
    updates = EngineSource(socket, log=log, sleep=no_pause).updates()
    async with told(socket, process.pid) as engine:
        await take(updates, 1)
        engine_lives = await lost(updates, engine)
        process.kill()
        await process.wait()
        assert engine_lives.end is None
        if code is not None:
            record_end(socket, process.pid, code)
        [gone] = await take(updates, 1)
    assert isinstance(gone, Disconnected)
    assert gone.end == EngineEnd(how, code == 0, log)


async def no_pause(_seconds: float) -> None:
    await asyncio.sleep(0)


async def lost(updates: AsyncIterator[Update], engine: FrameEngine) -> Disconnected:
    """End the connection; what the source says then."""
    await engine.stop()
    while True:
        [update] = await take(updates, 1)
        if isinstance(update, Disconnected):
            return update


async def test_an_engine_in_a_container_is_never_reported_as_dead(socket: Path) -> None:
    """Its pid means nothing on this side."""
    updates = EngineSource(socket, sleep=no_pause).updates()
    async with told(socket, 1 << 30) as engine:
        await take(updates, 1)
        assert (await lost(updates, engine)).end is None


async def test_a_new_connection_continues_with_the_events_after_the_last_frame(socket: Path) -> None:
    updates = EngineSource(socket, sleep=no_pause).updates()
    async with told(socket, None) as engine:
        await take(updates, 1)
        await lost(updates, engine)
    async with told(socket, None) as engine:
        while not isinstance((await take(updates, 1))[0], Frame):
            pass
        assert ("GET", "/admin/stream?rate=4&boot_id=boot-1&events_after=17", None) in engine.calls


async def test_an_unanswered_change_is_neither_done_nor_refused(socket: Path) -> None:
    class Mute(FrameEngine):
        def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
            raise ConnectionError

    async with Mute(socket):
        answer = await EngineSource(socket).change({"slots": 8}, 3)
    assert (answer.ok, answer.unknown) == (False, True)
    assert not (await EngineSource(socket).change({"slots": 8}, 3)).unknown


async def test_an_answer_of_another_program_is_reported_in_a_sentence(socket: Path) -> None:
    class Odd(FrameEngine):
        def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
            return 500, ["?"]

    async with Odd(socket):
        answer = await EngineSource(socket).change({"slots": 8}, None)
    assert answer.message == "the admin API answered 500"


async def test_an_unreadable_frame_is_a_disconnection_with_a_reason(socket: Path) -> None:
    async with FrameEngine(socket) as engine:
        engine.frame = lambda _step: WindowInfo(seconds=1)  # type: ignore
        [update] = await take(EngineSource(socket).updates(), 1)
    assert isinstance(update, Disconnected)
    assert "unreadable answer from the engine (boot_id" in update.reason


@pytest.mark.parametrize("name", ["run.ndjson", "run.ndjson.gz"])
async def test_a_recording_is_read_as_it_was_written(tmp_path: Path, name: str) -> None:
    recorded = [frames.busy(step) for step in range(4)]
    path = tmp_path / name
    assert write_frames(path, recorded) == 4
    assert list(read_frames(path)) == recorded
    got = await take(RecordingSource(path, ending=Disconnected("end of the recording", final=True)).updates(), 5)
    assert got[:4] == recorded
    assert got[4] == Disconnected("end of the recording", final=True)
    assert not (await RecordingSource(path).change({"slots": 1}, None)).ok


async def test_the_first_frame_of_a_connection_is_followed_by_the_past(socket: Path) -> None:
    async with FrameEngine(socket, frames.busy) as engine:
        engine.past = tuple(frames.busy(step) for step in range(-240, 0, 4))
        updates = EngineSource(socket).updates()
        got = await take(updates, 3)
        await updates.aclose()  # type: ignore[attr-defined]
    assert [type(update) for update in got] == [Frame, Past, Frame]
    assert isinstance(got[1], Past)
    assert got[1].frames == engine.past
