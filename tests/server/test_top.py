"""`slotdeck top` with a running server: one picture, one frame, a stream of frames."""

from __future__ import annotations

import json
import subprocess
import sys

import pexpect
import pytest
from typer.testing import CliRunner

from slotdeck.console.cli.main import app
from slotdeck.engine.telemetry.frame import Frame
from tests.support.stub_server import RunningServer


def top(server: RunningServer, *arguments: str) -> str:
    result = CliRunner().invoke(app, ["top", *arguments, "--socket", str(server.settings.socket)])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_one_picture_names_the_users_and_has_no_control_codes(server: RunningServer) -> None:
    server.runner.gate.clear()
    connection = server.raw_chat("forever")
    server.until(lambda frame: frame.running == 1)
    text = top(server, "--once")
    connection.close()
    assert "127.0.0.1" in text
    assert "prefill" in text
    assert "slots" in text
    assert "\x1b" not in text
    assert all(line == line.rstrip() for line in text.splitlines())


def test_one_frame_as_json(server: RunningServer) -> None:
    frame = Frame.model_validate_json(top(server, "--json"))
    assert frame.boot_id == server.frame().boot_id


def test_frames_come_until_the_reader_closes_the_pipe(server: RunningServer) -> None:
    code = "from slotdeck.console.cli.main import run; run()"
    command = [sys.executable, "-c", code, "top", "--watch", "--every", "0.1", "--socket", str(server.settings.socket)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        sequences = [json.loads(process.stdout.readline())["sequence"] for _ in range(3)]
        process.stdout.close()
        assert process.wait(20) == 0
        assert process.stderr.read() == ""
    assert sequences == [1, 2, 3]


def test_on_a_terminal_it_goes_on_until_ctrl_c(server: RunningServer) -> None:
    code = "from slotdeck.console.cli.main import run; run()"
    command = ["-c", code, "top", "--every", "0.1", "--socket", str(server.settings.socket)]
    with pexpect.spawn(sys.executable, command, encoding="utf-8", timeout=20, dimensions=(24, 80)) as terminal:
        for _ in range(3):
            terminal.expect("KV pool")
        terminal.sendintr()
        while terminal.isalive():  # it may be drawing: what it still writes must be read, or it cannot end
            terminal.expect(["KV pool", pexpect.EOF])
        terminal.wait()
        assert "Traceback" not in (terminal.before or "")
        assert terminal.exitstatus == 0


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--once", "--json"], 2, "only one of --once"),
        (["--socket", "/nowhere/engine.sock"], 4, "no engine runs on /nowhere/engine.sock"),
        (["--every", "9"], 2, "--every"),
    ],
)
def test_what_cannot_be_printed_is_explained(arguments: list[str], code: int, words: str) -> None:
    result = CliRunner().invoke(app, ["top", *arguments])
    assert (result.exit_code, words in result.stderr) == (code, True)
