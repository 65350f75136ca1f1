"""The doctor on a real server with provoked problems: a full queue, a small pool, a prompt that is too long."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from slotdeck.console.advice.doctor import diagnose
from slotdeck.console.cli.main import app
from slotdeck.console.sources.recording import read_frames
from slotdeck.engine.paths import history_path
from slotdeck.engine.telemetry.frame import Frame
from slotdeck.engine.telemetry.history.reader import History
from tests.support.history import record
from tests.support.stub_server import running

PREEMPTING = Path(__file__).parents[1] / "recordings" / "preempting.ndjson.gz"


def test_a_prompt_too_long_is_found_and_counted(tokenizer: Path, tmp_path: Path) -> None:
    with running(tokenizer, tmp_path, slots=2, context=64) as server:
        before = server.frame()
        assert server.chat("say: " + "word " * 200).status_code == 400
        assert server.chat("say: " + "word " * 200, max_tokens=5).json()["error"]["code"] == "context_length_exceeded"
        assert server.chat("", temperature=9).status_code == 400
        after = server.frame()
        assert (after.counters.invalid, after.counters.too_long) == (3, 2)
        events, _ = server.engine.telemetry.events_since(0)
        (finding,) = diagnose([before, after.model_copy(update={"events": events})])
    assert finding.rule == "context"
    assert "2 prompts were refused" in finding.evidence[0]
    assert "from 127.0.0.1" in finding.evidence


def test_a_pool_too_small_is_found(tokenizer: Path, tmp_path: Path) -> None:
    with running(tokenizer, tmp_path, slots=4, context=256, kv_tokens=320) as server:
        frames: list[Frame] = [server.frame()]
        connections = [server.raw_chat("forever", max_tokens=200) for _ in range(4)]
        server.until(lambda frame: (frame.counters.preemptions or 0) > 0)
        frames.append(server.frame())
        for connection in connections:
            connection.close()
        server.idle()
    assert "preemption" in {finding.rule for finding in diagnose(frames)}


def test_the_command_watches_an_engine_that_keeps_no_history(
    tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slotdeck.console.cli.doctor.WATCH_SECONDS", 1)
    environment = {"XDG_STATE_HOME": str(tmp_path), "TZ": "UTC"}
    with running(tokenizer, tmp_path) as server:
        arguments = ["doctor", "--socket", str(server.settings.socket)]
        plain = CliRunner(env=environment).invoke(app, arguments)
        assert plain.exit_code == 0, plain.output
        assert plain.stdout.splitlines()[-1] == "nothing is wrong"
        assert "no history yet" in plain.stderr
    gone = CliRunner(env=environment).invoke(app, arguments)
    assert (gone.exit_code, "no engine runs" in gone.stderr) == (4, True)


def test_the_command_looks_at_a_time_that_was_recorded(tmp_path: Path) -> None:
    result = CliRunner(env={"XDG_STATE_HOME": str(tmp_path)}).invoke(app, ["doctor", "--from", "1h", "--json"])
    assert (result.exit_code, "no history yet" in result.stderr) == (4, True)
    assert json.loads(result.stdout or "[]") == []


def test_exit_code_and_json_of_a_recorded_evening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    frames = list(read_frames(PREEMPTING))
    asyncio.run(record(frames[: len(frames) // 10 * 10]))
    span = [time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(frames[at].time + at)) for at in (0, -1)]
    arguments = ["doctor", "--from", span[0], "--to", span[1]]
    plain = CliRunner().invoke(app, arguments)
    assert plain.exit_code == 5, plain.output
    assert "! Running requests lose their KV (costs users " in plain.stdout
    as_json = CliRunner().invoke(app, [*arguments, "--json"])
    first, *_others = json.loads(as_json.stdout)
    assert (as_json.exit_code, first["rule"], first["level"]) == (5, "preemption", "critical")
    assert list(first["changes"]) == ["kv_tokens"]
    assert first["cost"] > 10


def test_an_end_in_the_middle_of_the_work_is_told_apart_from_the_end_of_a_range(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    frames = list(read_frames(PREEMPTING))[:60]
    asyncio.run(record(frames))
    kept = list(History(history_path()).frames(0, time.time()))
    assert kept[-1].running

    def rules(last: Frame) -> set[str]:
        span = [time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at)) for at in (kept[0].time, last.time + 1)]
        found = CliRunner().invoke(app, ["doctor", "--from", span[0], "--to", span[1], "--json"])
        return {finding["rule"] for finding in json.loads(found.stdout)}

    assert "died" in rules(kept[-1])
    assert "died" not in rules(kept[-10])
