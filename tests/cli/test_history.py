"""`slotdeck history` and `slotdeck replay`: what was recorded comes out, and goes back onto a screen."""

from __future__ import annotations

import csv
import gzip
import io
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest
from typer.testing import CliRunner

from slotdeck.console.cli.main import app
from slotdeck.console.cli.moments import parse_moment, time_range
from slotdeck.console.sources.recording import read_frames
from slotdeck.engine.paths import history_path
from slotdeck.engine.telemetry.frame import Frame
from slotdeck.engine.telemetry.history.recorder import Recorder
from slotdeck.engine.telemetry.history.schema import RequestRecord
from tests.support import frames as made
from tests.support.deck import Deck

NOW = 1_795_600_800.0
"""2026-11-25 10:00:00 UTC"""


class Picture:
    """An engine that only has a telemetry to listen to and frames to give."""

    def __init__(self) -> None:
        from slotdeck.engine.telemetry.telemetry import Telemetry

        self.telemetry = Telemetry(lambda: 0.0, lambda: made.START)
        self.boot_id = "boot-1"

    def frame(self, sequence: int, event_cursor: int) -> tuple[Frame, int]:
        events, cursor = self.telemetry.events_since(event_cursor)
        return made.frame(sequence=sequence, time=made.START + sequence, events=events), cursor


@pytest.fixture
async def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A history of twenty seconds in a state folder of its own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    engine = Picture()
    recorder = Recorder(engine, history_path(), days=3650, megabytes=100)
    await recorder.open()
    engine.telemetry.log("rejected", "=cmd()|evil refused: the queue is full", user="=cmd()|evil")
    for _ in range(2):
        for _ in range(10):
            recorder.take_frame()
        await recorder.write()
    assert recorder._writer._database is not None
    record = RequestRecord(
        boot_id="boot-1", request_id="r1", user="=1+1", ended=made.START + 3, outcome="finished", ttft=0.5
    )
    names = list(RequestRecord.model_fields)
    await recorder._writer._database.execute(
        f"INSERT INTO requests ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})",
        list(record.model_dump().values()),
    )
    await recorder._writer._database.commit()
    await recorder.close()
    return history_path()


def slotdeck(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return result.stdout


def test_requests_as_csv_hold_no_formula_of_a_client(recorded: Path) -> None:
    (row,) = csv.DictReader(io.StringIO(slotdeck("history", "export")))
    assert row["user"] == "'=1+1"
    assert (row["request_id"], row["ttft"], row["itl_p95"]) == ("r1", "0.5", "")
    assert row["ended"] == "2026-11-25T10:00:03.000Z"


def test_events_and_seconds_as_json(recorded: Path) -> None:
    (event,) = json.loads(slotdeck("history", "export", "--what", "events", "--format", "json"))
    assert (event["kind"], event["user"]) == ("rejected", "=cmd()|evil")
    rows = json.loads(slotdeck("history", "export", "--what", "seconds", "--format", "json"))
    assert len(rows) == 20
    assert rows[0]["slots"] == 4
    assert rows[0]["pool_total"] == 8192
    assert rows[0]["gpu_percent"] is None


def test_a_range_and_nothing_in_it(recorded: Path) -> None:
    rows = slotdeck("history", "export", "--what", "seconds", "--from", "2026-11-25T10:00:05Z", "--to",
                    "2026-11-25T10:00:07Z")  # fmt: skip
    assert len(rows.splitlines()) == 4
    assert slotdeck("history", "export", "--to", "2020-01-01", "--format", "json") == "[]\n"


def test_frames_go_out_and_come_back(recorded: Path, tmp_path: Path) -> None:
    path = tmp_path / "slice.ndjson.gz"
    slotdeck("history", "export", "--what", "frames", str(path))
    frames = list(read_frames(path))
    assert [frame.sequence for frame in frames] == list(range(1, 21))
    assert frames[0].engine == made.ENGINE
    assert frames[0].events[0].kind == "rejected"


def test_info(recorded: Path) -> None:
    facts = json.loads(slotdeck("history", "info", "--json"))
    assert facts["path"] == str(recorded)
    assert (facts["frames"], facts["requests"], facts["events"]) == (20, 1, 1)
    assert facts["from"] == "2026-11-25T10:00:01.000Z"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["history", "export", "--from", "soon"], 2, "is not a time; write 21:40"),
        (["history", "export", "--from", "1h", "--to", "2h"], 2, "--from is later than --to"),
        (["history", "export", "--what", "frames", "--format", "csv"], 2, "frames have no columns"),
        (["history", "export", "/nowhere/file.csv"], 1, "No such file"),
        (["--slots", "3", "history", "info"], 2, "--slots does not apply"),
        (["replay"], 2, "give either a FILE"),
        (["replay", "x.ndjson", "--to", "1h"], 2, "--to needs --from"),
        (["replay", "/nowhere.ndjson"], 1, "No such file"),
        (["replay", __file__], 1, "line 1 is not a Slotdeck frame"),
        (["replay", "--from", "1s"], 4, "nothing was recorded in that time"),
        (["doctor", "--from", "1s"], 4, "nothing was recorded in that time"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(recorded: Path, arguments: list[str], code: int, words: str) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == code
    assert words in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_without_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for command in (["history", "info"], ["replay", "--from", "1h"], ["doctor", "--from", "1h"]):
        result = CliRunner().invoke(app, command)
        assert (result.exit_code, "no history yet" in result.stderr) == (4, True)


def test_the_doctor_without_an_engine_says_how_to_look_back_and_that_is_so(recorded: Path, tmp_path: Path) -> None:
    without = CliRunner().invoke(app, ["doctor", "--socket", str(tmp_path / "none.sock")])
    assert (without.exit_code, without.stdout) == (4, "")
    assert "no engine runs on" in without.stderr
    assert "`slotdeck doctor --from 2h` examines what was recorded" in without.stderr
    looking = ["doctor", "--from", "2026-11-25T10:00:00Z", "--to", "2026-11-25T10:01:00Z"]
    assert "20 frames" in CliRunner().invoke(app, looking).stdout


def test_a_history_that_cannot_be_read_is_a_failure_and_not_an_empty_one(recorded: Path) -> None:
    recorded.write_bytes(b"no database" * 100)
    result = CliRunner().invoke(app, ["doctor", "--from", "1h"])
    assert (result.exit_code, "cannot be read" in result.stderr) == (1, True)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("now", NOW), ("30m", NOW - 1800), ("1.5h ago", NOW - 5400), ("2d", NOW - 172_800), ("09:30", NOW - 1800),
        ("10:30", NOW - 86_400 + 1800), ("2026-11-25T09:59:50", NOW - 10), ("2026-11-25", NOW - 36_000),
    ],
)  # fmt: skip
def test_moments(text: str, seconds: float, utc: None) -> None:
    assert parse_moment(text, NOW) == pytest.approx(seconds)


def test_an_end_later_today_is_now() -> None:
    clock = [time.strftime("%H:%M:%S", time.localtime(NOW + more)) for more in (-600, 600)]
    assert time_range(clock[0], clock[1], NOW) == (NOW - 600, NOW)
    assert time_range("20m", clock[0], NOW) == (NOW - 1200, NOW - 600)


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    import time

    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_a_recording_plays_on_the_live_screen_and_says_that_it_is_one(deck: Deck, tmp_path: Path) -> None:
    path = tmp_path / "slice.ndjson.gz"
    with gzip.open(path, "wt") as file:
        for step in range(3):
            file.write(made.busy(step * 4).model_dump_json(exclude_defaults=True) + "\n")
    spawned = pexpect.spawn(
        sys.executable,
        ["-c", "from slotdeck.console.cli.main import run; run()", "replay", str(path), "--speed", "50"],
        env=deck.environment, cwd=str(tmp_path), encoding="utf-8", timeout=30, dimensions=(24, 100),
    )  # fmt: skip
    deck.terminals.append(spawned)
    spawned.expect("REPLAY")
    spawned.expect("end of the recording")
    spawned.send("q")
    spawned.expect(pexpect.EOF)
    spawned.wait()
    assert spawned.exitstatus == 0
