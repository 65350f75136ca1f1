"""Settings in the words of other servers: values, reasons, where meanings differ, and text that is what it says."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from slotdeck.console.advice.export import Export, ExportedSettings, export_settings

CHOSEN = ExportedSettings(slots=4, context=2048, queue=16, budget=64, model="/models/some.gguf")
SERVERS = ("ollama", "llama-server", "vllm")


def values(export: Export) -> dict[str, str]:
    return {option.name: option.value for option in export.options}


def warned(export: Export) -> str:
    return "\n".join(export.warnings)


def test_ollama_multiplies() -> None:
    export = export_settings("ollama", CHOSEN)
    assert values(export) == {
        "OLLAMA_NUM_PARALLEL": "4", "OLLAMA_CONTEXT_LENGTH": "2048", "OLLAMA_MAX_QUEUE": "16",
    }  # fmt: skip
    assert "it allocates 4 x 2048 = 8192 tokens" in warned(export)
    assert "Ollama silently cuts a prompt" in warned(export)
    eight = values(export_settings("ollama", replace(CHOSEN, kv_dtype="int8")))
    assert (eight["OLLAMA_KV_CACHE_TYPE"], eight["OLLAMA_FLASH_ATTENTION"]) == ("q8_0", "1")


def test_llama_server_divides() -> None:
    export = export_settings("llama-server", CHOSEN)
    assert values(export) | {"-m": ""} == {
        "-m": "", "-np": "4", "-c": "8192", "-b": "68", "--cache-type-k": "bf16", "--cache-type-v": "bf16", "-cb": "",
        "--port": "8080", "--metrics": "",
    }  # fmt: skip
    assert "llama-server divides: -c 8192 by -np 4 gives 2048" in warned(export)
    assert "does not limit waiting requests" in warned(export)
    eight = values(export_settings("llama-server", replace(CHOSEN, kv_dtype="int8")))
    assert (eight["--cache-type-k"], eight["--cache-type-v"], eight["-fa"]) == ("q8_0", "q8_0", "on")


def test_vllm_counts_what_runs_in_the_step_and_in_the_queue() -> None:
    export = export_settings("vllm", replace(CHOSEN, kv_dtype="int8", utilisation=0.85))
    assert values(export) == {
        "--max-num-seqs": "4", "--max-model-len": "2048", "--max-num-batched-tokens": "68",
        "--max-num-queued-reqs": "20", "--gpu-memory-utilization": "0.85", "--kv-cache-dtype": "int8_per_token_head",
    }  # fmt: skip
    assert "That server changes nothing live" in warned(export)
    assert "exec vllm serve /models/some.gguf" in export.text


@pytest.mark.parametrize("server", SERVERS)
def test_serial_is_one_slot_and_static_is_said(server: str) -> None:
    serial = export_settings(server, replace(CHOSEN, mode="serial"))  # type: ignore[arg-type]
    name = {"ollama": "OLLAMA_NUM_PARALLEL", "llama-server": "-np", "vllm": "--max-num-seqs"}[server]
    assert values(serial)[name] == "1"
    assert "Mode serial becomes" in warned(serial)
    static = export_settings(server, replace(CHOSEN, mode="static"))  # type: ignore[arg-type]
    assert "--no-cont-batching" in values(static) or "Mode static has no counterpart" in warned(static)


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("form", ["systemd", "command"])
def test_every_flag_has_its_reason_and_there_is_a_way_to_apply_and_to_verify(server: str, form: str) -> None:
    export = export_settings(server, CHOSEN, form, "my-unit")  # type: ignore[arg-type]
    for option in export.options:
        assert option.reason
        assert option.name in export.text
    assert export.apply
    assert export.verify
    assert ("/etc/systemd/system/my-unit.service.d/slotdeck.conf" in export.text) == (form == "systemd")
    for command in (*export.apply, *export.verify):
        assert f"#   {command}" in export.text
    for line in export.text.splitlines():
        assert len(line) <= 100 or line.startswith(("#   ", "ExecStart="))  # commands stay whole


MODELS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=40)


@given(MODELS)
@example("a b'c\"$(touch /tmp/x)`id`\\")
@example("two\nlines\\")
def test_a_script_is_one_command_with_the_very_words(model: str) -> None:
    export = export_settings("llama-server", replace(CHOSEN, model=model))
    code = [line for line in export.text.split("\n") if not line.startswith("#")]
    words = shlex.split("\n".join(code).replace("\\\n", " ") if "\n" not in model else "\n".join(code), posix=True)
    assert words[:2] == ["exec", "llama-server"]
    assert words[words.index("-m") + 1] == model


@given(MODELS)
@example('a b%$"\\x')
@example("two\nlines\\")
@example("a\r[Service]\rExecStart=/bin/sh")
def test_a_drop_in_has_only_its_own_lines(model: str) -> None:
    text = export_settings("llama-server", replace(CHOSEN, model=model), "systemd").text
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert [line.split("=")[0] for line in lines] == ["[Service]", "ExecStart", "ExecStart"]
    assert not any(line.endswith("\\") for line in text.splitlines())
    word = lines[-1].partition(" -m ")[2].rpartition(" -np ")[0]
    assert "%" not in word.replace("%%", "")
    assert "$" not in word.replace("$$", "")


@pytest.mark.skipif(shutil.which("sh") is None, reason="no POSIX shell here")
@pytest.mark.parametrize("server", SERVERS)
def test_the_shell_reads_the_script_as_meant(server: str, tmp_path: Path) -> None:
    export = export_settings(server, replace(CHOSEN, model='it\'s "a" $HOME `id` \\ %'), "command")  # type: ignore[arg-type]
    program = tmp_path / {"ollama": "ollama", "llama-server": "llama-server", "vllm": "vllm"}[server]
    program.write_text("#!/bin/sh\nenv\nprintf '%s\\n' \"$@\"\n")
    program.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = ["sh", "-c", export.text]
    out = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()
    for option in export.options:
        wanted = [f"{option.name}={option.value}"] if server == "ollama" else [option.name, option.value]
        assert all(word in out for word in wanted if word)


def test_fp32_has_no_counterpart_and_reasons_stand_before_a_command() -> None:
    plain = ExportedSettings(slots=4, context=2048, queue=16, budget=64)
    for server in ("ollama", "vllm"):
        told = [any("fp32" in text for text in export_settings(server, replace(plain, kv_dtype=kind)).warnings)
                for kind in ("fp32", "bf16", "int8")]  # fmt: skip
        assert told == [True, False, False]
    text = export_settings("vllm", plain).text
    reason = "slots: requests that run at the same time"
    assert f"#   --max-num-seqs 4: {reason}" in text
    assert text.index(reason) < text.index("exec vllm serve")
