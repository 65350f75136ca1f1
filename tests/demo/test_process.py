"""The demonstration as the console starts it: a process that tells its events and ends when asked."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from slotdeck.console.demo.state import DemoState, Event
from slotdeck.console.demo.wanted import Wanted
from slotdeck.console.processes.demo_process import DemoProcess
from tests.support.stub_server import running


def test_it_runs_and_ends_when_asked(tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    async def run(process: DemoProcess, wanted: Wanted, *, stop: bool) -> DemoState:
        state = DemoState()

        def tell(event: Event) -> None:
            state.apply(event)
            if stop and event["event"] == "row":
                process.stop()

        await process.run(wanted, tmp_path / "out", tell)
        return state

    with running(tokenizer, tmp_path, slots=2, context=2048) as server:
        assert server.settings.socket is not None
        process = DemoProcess(server.settings.socket)
        wanted = Wanted((2,), ("agent",), ("serial",), seconds=1)
        state = asyncio.run(run(process, wanted, stop=False))
        assert (state.ended, state.done(0), len(state.files)) == ("done", True, 4)
        state = asyncio.run(run(process, Wanted(scenes=("blocked",)), stop=True))
        assert state.ended == "stopped"
        server.until(lambda frame: (frame.limits.mode, frame.limits.slots) == ("continuous", 2))
        server.idle()


def test_one_that_cannot_start_says_where_its_log_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    state = DemoState()
    asyncio.run(DemoProcess(tmp_path / "no.sock").run(Wanted(), tmp_path / "out", state.apply))
    assert state.ended == "failed"
    assert "no engine answers" in state.end_text
