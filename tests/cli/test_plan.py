"""`slotdeck plan`: where its numbers come from, what it prints, and how it refuses."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from slotdeck.console.bench.calibration_file import save_calibration
from slotdeck.console.cli import plan_inputs
from slotdeck.console.cli.main import app
from slotdeck.engine.telemetry.frame import EngineInfo, Frame, HostInfo, PoolInfo
from tests.support.calibration import CALIBRATION
from tests.support.fake_engine import FakeEngine, engine_on
from tests.support.model_facts import QWEN3_8B


@pytest.fixture
def config(tmp_path: Path) -> Path:
    folder = tmp_path / "Qwen3-8B"
    folder.mkdir()
    file = folder / "config.json"
    file.write_text(json.dumps(QWEN3_8B))
    return file


@pytest.fixture(autouse=True)
def nothing_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def run(tmp_path: Path, *arguments: str) -> Any:
    return CliRunner().invoke(app, ["plan", "--socket", str(tmp_path / "none.sock"), *arguments])


def planned(tmp_path: Path, *arguments: str) -> dict[str, Any]:
    result = run(tmp_path, "--json", *arguments)
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


CHAT = ("--users", "20", "--generate-seconds", "12", "--turn-seconds", "90", "--context", "8192")


def test_hardware_that_nobody_owns_yet(tmp_path: Path, config: Path) -> None:
    found = planned(tmp_path, "--gpu", "24GiB", "--model-config", str(config), *CHAT)
    assert found["kv"] == {"dtype": "bf16", "bytes_per_token": 147_456, "scale_bytes_per_token": 0}
    assert found["capacity"]["conversation_bytes"] == 1_207_959_552
    assert found["memory"]["usable_bytes"] == int((24 << 30) * 0.92)
    assert found["load"]["in_flight"] == pytest.approx(20 * 12 / 90)
    assert found["capacity"]["shown"] == "≈6 (6.06)"
    assert {one["name"]: one["value"] for one in found["settings"]} == {
        "slots": 4, "context": 8192, "queue": 10, "budget": 512, "kv_tokens": 49_680,
    }  # fmt: skip
    assert found["model"]["name"] == "Qwen3-8B"


def test_typed_numbers_and_a_memory_taken_whole_give_the_worked_example(tmp_path: Path) -> None:
    typed = ("--layers", "36", "--kv-heads", "8", "--head-dim", "128", "--weights-size", "16GB", "--memory", "22GB")
    assert planned(tmp_path, *typed, "--context", "8192")["capacity"]["shown"] == "≈5 (4.97)"
    eight = planned(tmp_path, *typed, "--context", "8192", "--kv-dtype", "int8")
    assert eight["kv"]["scale_bytes_per_token"] == 2 * 36 * 8 * 4
    assert eight["capacity"]["conversations"] > 9


def test_a_folder_and_a_type_of_weights(tmp_path: Path, config: Path) -> None:
    found = planned(tmp_path, "--model-config", str(config.parent), "--weights", "int8", "--memory", "16GiB")
    assert found["model"]["weights"] == "int8"
    embedding = QWEN3_8B["vocab_size"] * QWEN3_8B["hidden_size"]
    packed = (found["model"]["parameters"] - embedding) * 1.03125 + 2 * embedding
    assert found["model"]["weight_bytes"] == pytest.approx(packed, abs=2)


def test_measured_speeds_give_the_seconds_of_a_turn(tmp_path: Path, config: Path) -> None:
    speeds = ("--prefill-speed", "1000", "--decode-speed", "50", "--prompt", "6000", "--answer", "200")
    found = planned(tmp_path, "--model-config", str(config), "--gpu", "24GiB", *speeds)
    assert found["load"]["generate_seconds"] == pytest.approx(10)
    assert found["assumed"] == []


def test_text_fits_80_columns_and_gives_each_setting_its_reason(tmp_path: Path, config: Path) -> None:
    text = run(tmp_path, "--gpu", "24GiB", "--model-config", str(config), *CHAT).stdout
    assert max(map(len, text.splitlines())) <= 80
    for words in ("147,456 bytes as bf16", "≈6 (6.06) conversations", "2.67 of 20 users", "  slots            4  "):
        assert words in text


def test_a_model_on_disk_is_described_by_the_engine(
    tmp_path: Path, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = {
        "id": "SmolLM2", "layers": 30, "kv_heads": 3, "head_dim": 64, "weight_bytes": 195_000_000, "weights": "int8",
        "trained_context": 8192, "parameters": 134_515_008, "vocabulary": 49_152, "hidden_size": 576,
        "tied_embeddings": True,
    }  # fmt: skip
    code = f"import json; print('slotdeck: fetching'); print({json.dumps(facts)!r})"
    monkeypatch.setattr(plan_inputs, "ENGINE_COMMAND", (sys.executable, "-c", code))
    save_calibration(CALIBRATION.model_copy(update={"model": "SmolLM2"}))
    lengths = ("--prompt", "2200", "--answer", "120")
    assert planned(tmp_path, *lengths)["load"]["generate_seconds"] == pytest.approx(3)
    assert planned(tmp_path, *lengths, "--kv-dtype", "int8")["speed"] is None
    found = planned(tmp_path, "--memory", "4GiB")
    assert (found["model"]["name"], found["kv"]["bytes_per_token"]) == ("SmolLM2", 23_040)
    assert planned(tmp_path, "--gpu", "8GiB")["model"]["weight_bytes"] == 2 * 134_515_008
    refuse = "import sys; print('slotdeck: Qwen3ForCausalLM is not supported.'); sys.exit(1)"
    monkeypatch.setattr(plan_inputs, "ENGINE_COMMAND", (sys.executable, "-c", refuse))
    result = run(tmp_path, "--model", str(config.parent), "--gpu", "24GiB", "--json")
    assert "Using its config.json instead." in result.stderr
    assert json.loads(result.stdout)["model"]["layers"] == 36
    assert run(tmp_path, "--model", "/nowhere").exit_code == 1


def test_a_model_that_is_not_there_is_a_mistake_of_usage(tmp_path: Path) -> None:
    result = run(tmp_path, "--model", "/nowhere")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("slotdeck: ")
    assert "/nowhere" in result.stderr
    assert result.stderr.count("\n") == 1


async def test_the_model_that_runs_is_planned_for_with_the_memory_that_is_left(tmp_path: Path) -> None:
    engine = EngineInfo(
        model="SmolLM2", weights="int8", kv_dtype="fp32", device="cpu", kernels="native avx2", threads=3, layers=30,
        kv_heads=3, head_dim=64, parameters=134_515_008, weight_bytes=195_000_000, trained_context=8192,
    )  # fmt: skip
    plain = FakeEngine.frame

    def frame(self: FakeEngine) -> Frame:
        host = HostInfo(memory_total=16 << 30, memory_used=15 << 30)
        pool = PoolInfo(total=8192, bytes_per_token=46_080, scale_bytes_per_token=0)
        return plain(self).model_copy(update={"engine": engine, "host": host, "pool": pool})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakeEngine, "frame", frame)
        async with engine_on(tmp_path / "none.sock"):
            found = await asyncio.to_thread(planned, tmp_path, "--users", "2")
            save_calibration(CALIBRATION.model_copy(update={"model": "SmolLM2", "kv_dtype": "fp32", "threads": 3}))
            lengths = ("--prompt", "1100", "--answer", "120")
            measured = await asyncio.to_thread(planned, tmp_path, *lengths)
            elsewhere = await asyncio.to_thread(planned, tmp_path, *lengths, "--gpu", "24GiB")
    assert (found["kv"]["dtype"], found["kv"]["bytes_per_token"]) == ("fp32", 46_080)
    assert found["memory"]["usable_bytes"] == (1 << 30) + 8192 * 46_080
    assert (found["speed"], found["load"]["generate_seconds"]) == (None, 12)
    assert (measured["speed"], measured["load"]["generate_seconds"]) == ({"prefill": 1100, "decode": 120}, 2)
    assert elsewhere["speed"] is None


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--gpu", "24"], 2, "24GiB"),
        (["--gpu", "24GiB", "--memory", "1GiB"], 2, "give only one of"),
        (["--layers", "3"], 2, "must be given together"),
        (["--model", "x", "--model-config", "y"], 2, "give only one of"),
        (["--decode-speed", "3"], 2, "must be given together"),
        (["--utilisation", "0.5", "--memory", "1GiB"], 2, "applies to a GPU"),
        (["--model-config", "/nowhere/config.json", "--gpu", "1GiB"], 1, "No such file"),
        (["--model-config", "/proc/cpuinfo", "--gpu", "1GiB"], 1, "not JSON"),
        (["--model-config", "CONFIG", "--gpu", "1GiB", "--users", "0"], 2, "users must be at least 1"),
        (["--model-config", "CONFIG", "--gpu", "1GiB", "--context", "3"], 2, "between 64 and"),
        (["--model-config", "CONFIG", "--gpu", "1GiB", "--utilisation", "2"], 2, "at most 1"),
        (["--model-config", "CONFIG", "--gpu", "1GiB", "--turn-seconds", "-1"], 2, "at least 0"),
    ],
)
def test_a_bad_number_is_one_line_that_says_what_to_do(
    tmp_path: Path, config: Path, arguments: list[str], code: int, words: str
) -> None:
    result = run(tmp_path, *[str(config) if one == "CONFIG" else one for one in arguments])
    assert result.exit_code == code
    assert result.stdout == ""
    assert result.stderr.startswith("slotdeck: ")
    assert words in result.stderr
    assert result.stderr.count("\n") == 1
