"""The demonstration on a real server over a scripted model: it measures, exports, and gives the settings back."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from slotdeck.console.cli.main import app
from slotdeck.console.demo.perform import perform
from slotdeck.console.demo.scenes import SCENES
from slotdeck.console.demo.state import DemoState, Event
from slotdeck.console.demo.wanted import Wanted, parse
from slotdeck.console.sources.recording import read_frames
from tests.support.stub_server import RunningServer, running

LIVE = ("mode", "slots", "context", "queue", "budget", "kv_tokens", "itl_target")


@pytest.fixture
def server(tokenizer: Path, tmp_path: Path) -> Iterator[RunningServer]:
    """Three slots of 2048 tokens; a token takes about four milliseconds."""
    with running(tokenizer, tmp_path, slots=3, context=2048, queue=2) as server:
        server.runner.pace = 0.004
        yield server
        server.idle()


def settings(server: RunningServer) -> dict[str, Any]:
    rows = {row["name"]: row["value"] for row in server.admin.get("/admin/settings").json()["settings"]}
    return {name: rows[name] for name in LIVE}


def shown(server: RunningServer, wanted: Wanted, folder: Path | None = None, **options: Any) -> DemoState:
    socket = server.settings.socket
    assert socket is not None
    options = {"on_event": lambda _event: None} | options
    return asyncio.run(perform(socket, wanted, seed=1, folder=folder, **options))


def test_it_shows_queueing_turn_into_batching_and_leaves_the_settings_as_they_were(
    server: RunningServer, tmp_path: Path
) -> None:
    server.admin.patch("/admin/settings", json={"changes": {"mode": "static"}, "source": "test"})
    before = settings(server)
    events: list[Event] = []
    wanted = Wanted((3,), ("agent",), ("serial", "continuous"), seconds=3)
    state = shown(server, wanted, tmp_path / "out", on_event=events.append)
    assert (state.ended, settings(server)) == ("done", before)
    serial, continuous = state.results
    assert serial is not None
    assert continuous is not None
    assert (serial.most_running, continuous.most_running) == (1, 3)
    assert serial.wait_max is not None
    assert continuous.wait_max is not None
    assert serial.wait_max > continuous.wait_max
    assert (continuous.tokens_per_second or 0) > (serial.tokens_per_second or 0) > 0
    assert (serial.errors, continuous.errors) == (0, 0)
    assert serial.sentence.startswith("One at a time: half of")
    assert "3 ran at once" in continuous.sentence
    assert {event["event"] for event in events} == {"plan", "status", "row", "sample", "result", "end"}
    names = ["recording.ndjson.gz", "report.json", "report.svg", "report.txt"]
    assert [Path(file).name for file in state.files] == names
    assert "continuous beside serial" in (tmp_path / "out" / "report.txt").read_text()
    document = json.loads((tmp_path / "out" / "report.json").read_text())
    assert [row["result"]["most_running"] for row in document["rows"]] == [1, 3]
    assert "<svg" in (tmp_path / "out" / "report.svg").read_text()
    assert {frame.limits.mode for frame in read_frames(tmp_path / "out" / "recording.ndjson.gz")} >= {
        "serial", "continuous",
    }  # fmt: skip


def test_a_scene_changes_more_and_gives_all_of_it_back(server: RunningServer) -> None:
    before = settings(server)
    seen: list[tuple[str | None, int | None]] = []

    def look(event: Event) -> None:
        if event["event"] == "sample" and not seen:
            limits = server.frame().limits
            seen.append((limits.mode, limits.slots))

    state = shown(server, Wanted(scenes=("blocked",)), on_event=look)
    assert (state.ended, settings(server)) == ("done", before)
    assert seen == [("serial", 5)]
    serial, continuous = state.results
    assert serial is not None
    assert continuous is not None
    long, *shorts = serial.calls
    assert long.seconds is not None
    assert all(call.ttft is not None and call.at + call.ttft > long.seconds - 0.1 for call in shorts)
    long, *shorts = continuous.calls
    assert long.seconds is not None
    assert all(call.ttft is not None and call.at + call.ttft < long.seconds for call in shorts)
    assert serial.sentence.startswith(f"One answer of {serial.calls[0].tokens} tokens ran for")


def test_the_pool_runs_out_and_the_queue_refuses(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slotdeck.console.demo.scenes.CROWD", 12)
    server.runner.pace = 0.001
    state = shown(server, Wanted(scenes=("pool", "promise")))
    assert state.ended == "done"
    tight, wide, promise, short = state.results
    assert tight is not None
    assert wide is not None
    assert promise is not None
    assert short is not None
    assert (tight.preemptions or 0) > 0
    assert f"ran out {tight.preemptions} times" in tight.sentence or "ran out once" in tight.sentence
    assert wide.preemptions == 0
    assert promise.rejected == 0
    assert promise.most_waiting > 3 >= short.most_waiting
    assert short.rejected > 0
    assert "were refused at once" in short.sentence


def test_it_is_ended_early_and_keeps_what_it_has(server: RunningServer, tmp_path: Path) -> None:
    before = settings(server)

    async def run() -> DemoState:
        stop = asyncio.Event()

        def tell(event: Event) -> None:
            if event["event"] == "sample" and event["row"] == 1:
                stop.set()

        socket = server.settings.socket
        assert socket is not None
        wanted = Wanted((2,), ("agent",), ("serial", "static"), seconds=2)
        return await perform(socket, wanted, seed=1, on_event=tell, folder=tmp_path / "out", stop=stop)

    state = asyncio.run(run())
    assert (state.ended, settings(server)) == ("stopped", before)
    assert "your settings are restored" in state.end_text
    assert state.done(0)
    assert not state.done(1)
    assert (tmp_path / "out" / "report.txt").exists()


@pytest.mark.parametrize("end", ["kill -9", "stdin closed"])
def test_the_settings_come_back_when_its_process_dies(server: RunningServer, tmp_path: Path, end: str) -> None:
    before = settings(server)
    wanted = json.dumps(asdict(Wanted(scenes=("blocked",))))
    command = [
        sys.executable,
        "-P",
        "-m",
        "slotdeck.console.demo",
        str(server.settings.socket),
        str(tmp_path / "out"),
        wanted,
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for line in process.stdout:
            if json.loads(line)["event"] == "sample":
                break
        assert settings(server) != before
        if end == "kill -9":
            process.kill()
        process.stdin.close()
        rest = [json.loads(line) for line in process.stdout]
    server.until(lambda _frame: settings(server) == before)
    assert [event["how"] for event in rest if event["event"] == "end"] == ([] if end == "kill -9" else ["stopped"])


@pytest.mark.parametrize(
    ("flags", "words"), [([], "18 rows, about 7 min"), (["--scene", "all"], "10 rows, about 5 min")]
)
def test_people_who_are_served_are_asked_for(server: RunningServer, flags: list[str], words: str) -> None:
    server.runner.gate.clear()
    connection = server.raw_chat("forever")
    server.until(lambda frame: frame.running == 1)
    before = settings(server)
    result = CliRunner().invoke(app, ["demo", *flags, "--socket", str(server.settings.socket)])
    assert result.exit_code == 2, result.output
    assert words in result.stderr
    assert "1 request of another user runs or waits" in result.stderr
    assert settings(server) == before
    connection.close()
    server.runner.gate.set()


def test_the_command_prints_the_table(server: RunningServer) -> None:
    arguments = ["demo", "--users", "2", "--kinds", "agent", "--modes", "continuous", "--seconds", "1"]
    result = CliRunner().invoke(app, [*arguments, "--socket", str(server.settings.socket)])
    assert result.exit_code == 0, result.output
    assert "2 agents" in result.stdout
    assert "TTFT p50" in result.stdout
    assert "\x1b" not in result.stdout + result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--users", "two"], "--users must be a list of numbers"),
        (["--users", "0"], "--users must be a list of numbers"),
        (["--kinds", "robot"], "--kinds must be a list of human, agent, document"),
        (["--modes", ""], "--modes must be a list of serial, static, continuous"),
        (["--scene", "opera"], "choose from blocked, slowest, stutter, pool, promise, or all"),
    ],
)
def test_wrong_use_is_one_sentence(arguments: list[str], words: str) -> None:
    result = CliRunner().invoke(app, ["demo", *arguments])
    assert result.exit_code == 2
    assert words in result.stderr


def test_the_flags_say_what_is_wanted() -> None:
    assert parse("2, 5,20", "human,agent", "serial,static,continuous", 20.0, []) == Wanted()
    assert parse("5", "document", "static,static", 7.5, []) == Wanted((5,), ("document",), ("static",), 7.5)
    assert parse("2", "agent", "serial", 20.0, ["pool", "stutter", "pool"]).scenes == ("pool", "stutter")
    assert parse("2", "agent", "serial", 20.0, ["all"]).scenes == tuple(SCENES)
