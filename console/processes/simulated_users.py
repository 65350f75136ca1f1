"""Simulated chat users on the engine, in a process of their own that ends with the console."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Protocol

from slotdeck.engine.paths import state_folder


class LoadControl(Protocol):
    """Starts and stops simulated users. The methods return quickly and may raise OSError."""

    users: int

    @property
    def running(self) -> bool:
        """True while the users run."""
        ...

    def start(self) -> None:
        """Start the users."""
        ...

    def stop(self) -> None:
        """Stop the users."""
        ...

    def ended_with(self) -> str | None:
        """Why the users ended by themselves, returned once; ``None`` while they run or after :meth:`stop`."""
        ...


class SimulatedUsers:
    """``python -m slotdeck.console.load`` against the engine behind ``socket``; its output goes to ``load.log``."""

    def __init__(self, socket: Path, users: int = 5) -> None:
        self.users = users
        self._socket = socket
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        return state_folder() / "load.log"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        if self.running:
            return
        self.log.parent.mkdir(parents=True, exist_ok=True)
        command = [
            sys.executable,
            "-m",
            "slotdeck.console.load",
            "--users",
            str(self.users),
            "--socket",
            str(self._socket),
            "--parent",
            str(os.getpid()),
        ]
        with self.log.open("wb") as log:
            # In a session of its own, because ctrl+z in the console must not stop the users.
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        process.terminate()
        try:
            process.wait(2)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def ended_with(self) -> str | None:
        if self._process is None or (code := self._process.poll()) is None:
            return None
        self._process = None
        return "the simulated users ended" if code == 0 else f"the simulated users failed (exit {code}), see {self.log}"
