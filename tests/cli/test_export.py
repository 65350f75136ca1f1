"""`slotdeck export`: whose settings it writes, and how it refuses."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from slotdeck.console.cli.main import app
from tests.support.fake_engine import engine_on


@pytest.fixture(autouse=True)
def no_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def run(tmp_path: Path, *arguments: str) -> Any:
    return CliRunner().invoke(app, ["export", *arguments, "--socket", str(tmp_path / "engine.sock")])


def options(tmp_path: Path, *arguments: str) -> dict[str, str]:
    result = run(tmp_path, *arguments, "--json")
    assert result.exit_code == 0, result.output
    return {one["name"]: one["value"] for one in json.loads(result.stdout)["options"]}


def test_without_an_engine_flags_go_before_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "slotdeck").mkdir()
    (tmp_path / "slotdeck" / "config.toml").write_text('slots = 6\nqueue = 3\nkv_dtype = "int8"\n')
    found = options(tmp_path, "ollama", "--queue", "9")
    assert (found["OLLAMA_NUM_PARALLEL"], found["OLLAMA_MAX_QUEUE"]) == ("6", "9")
    assert found["OLLAMA_KV_CACHE_TYPE"] == "q8_0"


async def test_the_settings_of_the_engine_that_runs(tmp_path: Path) -> None:
    async with engine_on(tmp_path / "engine.sock") as engine:
        engine.slots = 7
        found = await asyncio.to_thread(options, tmp_path, "vllm", "--context", "4096")
    assert (found["--max-num-seqs"], found["--max-model-len"]) == ("7", "4096")
    assert found["--max-num-batched-tokens"] == str(64 + 7)


def test_a_model_on_disk_is_taken_by_the_server_that_can_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "some.gguf"
    file.touch()
    monkeypatch.setenv("SLOTDECK_MODEL", str(file))
    assert options(tmp_path, "llama-server")["-m"] == str(file)
    assert "exec vllm serve MODEL" in run(tmp_path, "vllm").stdout
    monkeypatch.setenv("SLOTDECK_MODEL", str(tmp_path))
    assert f"exec vllm serve {tmp_path}" in run(tmp_path, "vllm").stdout


def test_a_plan_becomes_settings(tmp_path: Path) -> None:
    typed = ("--layers", "36", "--kv-heads", "8", "--head-dim", "128", "--weights-size", "16GB", "--gpu", "24GiB")
    people = ("--users", "20", "--generate-seconds", "12", "--context", "8192", "--kv-dtype", "int8")
    made = CliRunner().invoke(app, ["plan", *typed, *people, "--json", "--socket", str(tmp_path / "none")])
    file = tmp_path / "plan.json"
    file.write_text(made.stdout)
    found = options(tmp_path, "vllm", "--plan", str(file), "--queue", "5")
    assert found == {
        "--max-num-seqs": "4", "--max-model-len": "8192", "--max-num-batched-tokens": "516",
        "--max-num-queued-reqs": "9", "--gpu-memory-utilization": "0.92", "--kv-cache-dtype": "int8_per_token_head",
    }  # fmt: skip


def test_the_text_is_a_file_and_a_missing_model_is_said_beside_it(tmp_path: Path) -> None:
    result = run(tmp_path, "llama-server")
    assert result.stdout.startswith("#!/bin/sh\n")
    assert "MODEL" in result.stderr
    named = run(tmp_path, "llama-server", "--model", "/m/x.gguf", "--as", "systemd", "--unit", "llm.service")
    assert named.stdout.startswith("# /etc/systemd/system/llm.service.d/slotdeck.conf\n")
    assert named.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["vllm", "--slots", "0"], 2, "--slots must be between 1 and 256"),
        (["vllm", "--unit", "../x"], 2, "--unit must be the name of a service"),
        (["vllm", "--plan", "/nowhere"], 1, "No such file"),
        (["vllm", "--plan", "NOTHING"], 1, "is not a plan of `slotdeck plan --json`"),
        (["tgi"], 2, "tgi"),
    ],
)
def test_a_bad_argument_says_what_to_do(tmp_path: Path, arguments: list[str], code: int, words: str) -> None:
    nothing = tmp_path / "nothing.json"
    nothing.write_text('{"settings": [], "kv": {}}')
    result = run(tmp_path, *[str(nothing) if one == "NOTHING" else one for one in arguments])
    assert result.exit_code == code
    assert result.stdout == ""
    assert words in result.stderr
