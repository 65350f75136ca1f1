"""`slotdeck plan --kind` and `--from`: what it prints, what it writes and how it refuses."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from slotdeck.console.advice.calibration import CalibrationError
from slotdeck.console.advice.search import SearchResult, search
from slotdeck.console.bench.calibration_file import (
    find_calibration,
    newest_calibration,
    read_calibration,
    save_calibration,
)
from slotdeck.console.bench.verify import MeasuredService
from slotdeck.console.cli import plan_search
from slotdeck.console.cli.main import app
from slotdeck.console.cli.plan_search import Job
from slotdeck.console.cli.plan_search_report import verify_text
from slotdeck.console.sources.recording import read_frames
from slotdeck.engine.paths import history_path
from slotdeck.engine.settings import LiveSettings
from slotdeck.engine.telemetry.frame import EngineInfo
from slotdeck.engine.telemetry.history.writer import HistoryWriter
from tests.support.calibration import CALIBRATION
from tests.support.frames import frame as some_frame
from tests.support.frames import limits_of
from tests.support.requests import record
from tests.support.simulation import run as simulated


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The same search without processes, over fewer budgets; nothing of the user is read."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))

    def run_search(job: Job) -> SearchResult:
        return search(
            job.run, job.base, goals=job.goals, context=job.context, max_slots=job.max_slots,
            max_pool=job.max_pool, budgets=(32, 128), modes=job.modes,
        )  # fmt: skip

    monkeypatch.setattr(plan_search, "run_search", run_search)


def run(tmp_path: Path, *arguments: str) -> Any:
    return CliRunner().invoke(app, ["plan", "--socket", str(tmp_path / "none.sock"), *arguments])


AGENTS = ("--kind", "agent", "--users", "4", "--seconds", "8", "--context", "512")


def test_a_search_needs_a_speed_calibration(tmp_path: Path) -> None:
    result = run(tmp_path, *AGENTS)
    assert result.exit_code == 1
    assert "slotdeck bench --calibrate" in result.stderr


def test_a_search_says_what_to_set_and_why(tmp_path: Path) -> None:
    save_calibration(CALIBRATION)
    result = run(tmp_path, *AGENTS, "--ttft-p95", "9", "--itl-p95", "0.3")
    assert result.exit_code == 0, result.output
    assert all(len(line) <= 80 for line in result.stdout.splitlines())
    assert "TTFT p95 9.00 s, ITL p95 300 ms, no preemptions, no refusals" in " ".join(result.stdout.split())
    assert "slotdeck serve --slots" in result.stdout
    assert "4 agents that never pause" in result.stdout


def test_goals_that_nothing_keeps_are_called_so(tmp_path: Path) -> None:
    save_calibration(CALIBRATION)
    result = run(tmp_path, *AGENTS, "--ttft-p95", "0.001")
    assert "no setting reaches all goals" in " ".join(result.stdout.split())


def test_json_holds_everything_and_the_recording_plays(tmp_path: Path) -> None:
    save_calibration(CALIBRATION)
    file = tmp_path / "run.ndjson.gz"
    result = run(tmp_path, *AGENTS, "--json", "--record", str(file), "--modes", "serial,continuous")
    document = json.loads(result.stdout)
    assert document["tried"] > document["simulated"] > 0
    assert document["choice"]["settings"]["slots"] >= 1
    assert {row["settings"]["mode"] for row in document["frontier"]} <= {"serial", "continuous"}
    frames = list(read_frames(file))
    assert frames[-1].counters.finished == document["choice"]["finished"]
    assert frames[-1].engine.name == "SIMULATED"


async def test_recorded_traffic_is_tried_under_other_settings(tmp_path: Path) -> None:
    save_calibration(CALIBRATION)
    now = time.time()
    records = [
        record(f"u{number}", 0.1 * number, 300, 40).model_copy(update={"ended": now - 100 + number})
        for number in range(6)
    ]
    writer = HistoryWriter(history_path())
    await writer.open()
    await writer.insert([some_frame()], [], records)
    await writer.close()
    result = run(tmp_path, "--from", "1h", "--ttft-p95", "5")
    assert result.exit_code == 0, result.output
    assert "6 requests of 6 users as recorded" in " ".join(result.stdout.split())
    nothing = run(tmp_path, "--from", "10s")
    assert nothing.exit_code == 4
    assert "no answered request was recorded" in nothing.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--verify",), "--verify needs --kind or --from"),
        (("--kind", "chat", "--gpu", "24GiB"), "--gpu cannot be used with --kind"),
        (("--kind", "chat", "--modes", "fast"), "--modes must be a list of"),
        (("--kind", "chat", "--ttft-p95", "0"), "--ttft-p95 must be above 0"),
        (("--kind", "chat", "--users", "0"), "--users must be between"),
        (("--kind", "chat", "--verify", "--seconds", "900"), "--seconds must be at most"),
        (("--kind", "chat", "--from", "2h"), "--from replays recorded traffic"),
    ],
)
def test_flags_that_do_not_go_together_are_refused(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    result = run(tmp_path, *arguments)
    assert result.exit_code == 2
    assert said in result.stderr


def test_what_is_in_force_now_stands_beside_the_frontier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = some_frame(limits=limits_of(slots=2, context=512, queue=0, kv_tokens=1024, itl_target=80))
    monkeypatch.setattr(plan_search, "read_speed", lambda _admin: (CALIBRATION, frame))
    result = run(tmp_path, *AGENTS, "--json")
    assert result.exit_code == 0, result.output
    now = json.loads(result.stdout)["now"]
    assert (now["settings"]["slots"], now["settings"]["itl_target"]) == (2, 0)
    assert now["refused"] > 0
    assert "in force now" in run(tmp_path, *AGENTS).stdout


def test_a_calibration_is_found_by_model_types_device_and_threads() -> None:
    path = save_calibration(CALIBRATION)
    engine = EngineInfo(model=CALIBRATION.model, weights="int8", kv_dtype="bf16", device="cpu", threads=2)
    assert find_calibration(engine) == newest_calibration() == CALIBRATION
    with pytest.raises(CalibrationError, match="has not been measured yet"):
        find_calibration(engine.model_copy(update={"threads": 4}))
    with pytest.raises(CalibrationError, match="does not report"):
        find_calibration(EngineInfo())
    path.write_text("{}")
    with pytest.raises(CalibrationError, match="is not a calibration"):
        find_calibration(engine)
    with pytest.raises(CalibrationError, match="no speed has been measured"):
        newest_calibration()


def test_predicted_stands_beside_the_median_of_what_was_measured(tmp_path: Path) -> None:
    save_calibration(CALIBRATION)
    job_found = search(
        simulated,
        LiveSettings(), goals=plan_search.Goals(), context=512, max_slots=1, max_pool=512, budgets=(64,),
    )  # fmt: skip
    tried = job_found.tried[0]
    ttft = tried.ttft_p95 or 0.0
    measured = [MeasuredService(None, ttft * factor, None, None, 10.0, 5, 0, 0, 0, 20.0) for factor in (0.8, 1.25, 5.0)]
    text = "\n".join(verify_text("choice", tried, measured))
    assert "-20%" in text
    assert "ITL p95" in text
    assert "–" in text


def test_verify_serves_the_choice_and_the_runner_up_with_the_same_traffic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_calibration(CALIBRATION)
    served: list[tuple[int, int, int, float]] = []

    def verify(start: Any, traffic: Any, wording: Any, _say: Any) -> MeasuredService:
        assert wording == CALIBRATION.wording
        served.append((start.slots, start.budget, start.kv_tokens, traffic.seconds))
        return MeasuredService(0.1, 0.5, 0.02, 0.05, 80.0, 9, 0, 0, 0, 10.0, others=1.5)

    monkeypatch.setattr("slotdeck.console.bench.verify.verify", verify)
    result = run(tmp_path, *AGENTS, "--verify", "--runs", "2")
    assert result.exit_code == 0, result.output
    assert len(served) == 4
    assert served[0] == served[1]
    assert served[0] != served[2] == served[3]
    text = " ".join(result.stdout.split())
    assert "choice: slots" in text
    assert "runner-up: slots" in text
    assert "500 ms to 500 ms" in text
    assert "other programs kept up to 1.5 cores busy during the runs" in text


def test_a_calibration_is_measured_saved_and_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "slotdeck.console.bench.calibrate.calibrate",
        lambda _settings, _say: CALIBRATION.model_copy(update={"others": 0.9}),
    )
    file = tmp_path / "calibration.json"
    result = CliRunner().invoke(app, ["bench", "--calibrate", "--output", str(file)])
    assert result.exit_code == 0, result.output
    assert all(len(line) <= 80 for line in result.stdout.splitlines() if not line.startswith("saved"))
    assert "memory bandwidth is the bottleneck" in " ".join(result.stdout.split())
    assert "other programs kept 0.9 cores busy" in " ".join(result.stdout.split())
    assert read_calibration(file) == newest_calibration()
    for arguments in (["--slots", "4"], ["--url", "http://127.0.0.1:1"]):
        assert CliRunner().invoke(app, ["bench", "--calibrate", *arguments]).exit_code == 2
