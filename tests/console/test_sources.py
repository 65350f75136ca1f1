"""The admin API over a unix socket and recordings, as sources."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from console.sources.base import Disconnected, Update
from console.sources.engine import FIRST_PAUSE, LONGEST_PAUSE, EngineSource
from console.sources.recording import RecordingSource, read_frames, write_frames
from engine.telemetry.frame import Frame, WindowInfo
from tests.console import frames
from tests.console.fake_engine import FakeEngine


@pytest.fixture
def socket(tmp_path: Path) -> Path:
    return tmp_path / "engine.sock"


async def take(updates: AsyncIterator[Update], number: int) -> list[Update]:
    async with asyncio.timeout(10):
        return [await anext(updates) for _ in range(number)]


async def test_frames_come_in_order_over_the_socket(socket: Path) -> None:
    async with FakeEngine(socket, frames.busy) as engine:
        engine.rate = 200
        got = await take(EngineSource(socket).updates(), 5)
    assert [update.sequence for update in got if isinstance(update, Frame)] == [0, 1, 2, 3, 4]
    assert ("GET", "/admin/stream?rate=4", None) in engine.calls


async def test_a_label_with_line_separators_does_not_break_the_stream(socket: Path) -> None:
    odd = frames.decoding(0, "a\u2028b\u2029c\x85d", 10, 5)
    async with FakeEngine(socket, lambda _step: frames.frame(slots=(odd,))) as engine:
        engine.rate = 200
        got = await take(EngineSource(socket).updates(), 2)
    assert all(isinstance(update, Frame) and update.slots[0].user == odd.user for update in got)


async def test_reconnects_with_growing_pauses_and_sees_the_restart(socket: Path) -> None:
    pauses: list[float] = []
    engine: FakeEngine | None = None

    async def sleep(seconds: float) -> None:
        nonlocal engine
        pauses.append(seconds)
        if len(pauses) == 7:
            engine = await FakeEngine(socket, boot="boot-2").__aenter__()

    updates = EngineSource(socket, sleep=sleep).updates()
    got = await take(updates, 8)
    lost, frame = got[:7], got[7]
    assert all(isinstance(x, Disconnected) and f"no engine answers at {socket}" == x.reason for x in lost)
    assert isinstance(frame, Frame)
    assert frame.boot_id == "boot-2"
    assert pauses[0] == FIRST_PAUSE
    assert pauses == sorted(pauses)
    assert pauses[-1] == LONGEST_PAUSE
    assert engine is not None
    await engine.stop()
    [gone] = await take(updates, 1)
    assert isinstance(gone, Disconnected)


async def test_settings_change_with_revision_conflict_and_refusal(socket: Path) -> None:
    async with FakeEngine(socket) as engine:
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


async def test_an_answer_that_is_not_ours_is_a_sentence(socket: Path) -> None:
    class Odd(FakeEngine):
        def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
            return 500, ["?"]

    async with Odd(socket):
        answer = await EngineSource(socket).change({"slots": 8}, None)
    assert answer.message == "the admin API answered 500"


async def test_an_unreadable_frame_is_a_disconnection_with_a_reason(socket: Path) -> None:
    async with FakeEngine(socket) as engine:
        engine.frame = lambda _step: WindowInfo(seconds=1)  # type: ignore
        [update] = await take(EngineSource(socket).updates(), 1)
    assert isinstance(update, Disconnected)
    assert "unreadable answer from the engine (boot_id" in update.reason


@pytest.mark.parametrize("name", ["run.ndjson", "run.ndjson.gz"])
async def test_a_recording_gives_back_what_was_written(tmp_path: Path, name: str) -> None:
    recorded = [frames.busy(step) for step in range(4)]
    path = tmp_path / name
    assert write_frames(path, recorded) == 4
    assert list(read_frames(path)) == recorded
    got = await take(RecordingSource(path, ending=Disconnected("end of the recording", final=True)).updates(), 5)
    assert got[:4] == recorded
    assert got[4] == Disconnected("end of the recording", final=True)
    assert not (await RecordingSource(path).change({"slots": 1}, None)).ok
