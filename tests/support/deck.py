"""`slotdeck` as a program in a pseudo-terminal or without one, over a fake engine and a fake console."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pexpect

ROOT = Path(__file__).parents[2]
DRIVER = ["-m", "tests.support.deck_driver"]
PATIENCE = 30


def process_runs(pid: int) -> bool:
    """True while a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def eventually(condition: Callable[[], Any]) -> None:
    """Poll until ``condition`` holds. Fails after ``PATIENCE`` seconds."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.02)


def _heed_interrupts() -> None:
    """Let ctrl+c work again: a suite that runs in the background of a shell script inherits SIGINT as ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Deck:
    """Starts `slotdeck` and knows the engines that it has started."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder = folder
        self.environment = environment
        self.log = folder / "state" / "slotdeck" / "engine.log"
        self.terminals: list[pexpect.spawn[str]] = []

    def terminal(self, *arguments: str, **environment: str) -> pexpect.spawn[str]:
        spawned = pexpect.spawn(
            sys.executable,
            [*DRIVER, *arguments],
            env=self.environment | environment,
            cwd=str(self.folder),
            encoding="utf-8",
            timeout=PATIENCE,
            dimensions=(24, 200),
            preexec_fn=_heed_interrupts,
        )
        self.terminals.append(spawned)
        return spawned

    def without_terminal(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *DRIVER, *arguments],
            env=self.environment | environment,
            cwd=self.folder,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=PATIENCE,
            check=False,
        )

    def engine_pids(self) -> list[int]:
        """The process ids of all engines whose output is in the log, in the order of their start."""
        text = self.log.read_text() if self.log.exists() else ""
        return [int(pid) for pid in re.findall(r"fake engine (\d+)", text)]

    def close(self) -> None:
        for spawned in self.terminals:
            spawned.close(force=True)
        for pid in self.engine_pids():
            if process_runs(pid):
                os.kill(pid, signal.SIGKILL)


def console_pid(terminal: pexpect.spawn[str]) -> int:
    """Wait until the console is open; its process id."""
    terminal.expect(r"CONSOLE pid=(\d+)")
    assert terminal.match is not None
    return int(terminal.match.group(1))


def exit_code(terminal: pexpect.spawn[str]) -> int | None:
    """Wait until the program ends; its exit code."""
    terminal.expect(pexpect.EOF)
    terminal.wait()
    return terminal.exitstatus
