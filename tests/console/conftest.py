"""Every test of the console lives in folders of its own and in UTC."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.terminal import MODULE, ROOT


@pytest.fixture(autouse=True)
def own_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("STATE_HOME", "DATA_HOME", "CONFIG_HOME", "CACHE_HOME", "RUNTIME_DIR"):
        folder = tmp_path / name.lower()
        folder.mkdir(mode=0o700)
        monkeypatch.setenv(f"XDG_{name}", str(folder))
    for name in ("NO_COLOR", "SLOTDECK_ASCII", "SLOTDECK_CONFIG", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def environment() -> dict[str, str]:
    # pytest-xdist sets COLUMNS and LINES, which fix the size of a terminal whatever happens to it.
    unwanted = ("LC_", "TEXTUAL", "COLUMNS", "LINES")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}
    return kept | {"TERM": "xterm-256color", "LANG": "C.UTF-8", "PS1": "ready$ "}


@pytest.fixture
def socket(tmp_path: Path, environment: dict[str, str]) -> Iterator[Path]:
    path = tmp_path / "e.sock"
    engine = subprocess.Popen([*MODULE, str(path), "steady"], cwd=ROOT, env=environment, stdout=subprocess.PIPE)
    assert engine.stdout is not None
    assert engine.stdout.readline() == b"ready\n"
    yield path
    engine.terminate()
    engine.wait(10)
    engine.stdout.close()
