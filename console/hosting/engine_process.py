"""An engine that the command line starts: its process, its log, and waiting until it serves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from slotdeck.console.client.admin import AdminClient, AdminError, NoEngineError
from slotdeck.engine.telemetry.frame import Frame

# -P: Python must not import a folder "slotdeck" from the user's current folder.
ENGINE_COMMAND = (sys.executable, "-P", "-m", "slotdeck.engine")
MAX_LOG_BYTES = 4 << 20
PROGRESS_PREFIX = "slotdeck: "


class EngineExitedError(RuntimeError):
    """The engine ended before it served. ``lines`` are the lines of its log."""

    def __init__(self, code: int, lines: list[str]) -> None:
        super().__init__(f"the engine ended with exit code {code}")
        self.code = code
        self.lines = lines


class LogTail:
    """The lines that are added to a file after this object was made."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = path.stat().st_size if path.exists() else 0
        self._lines: list[str] = []
        self._rest = b""

    def read(self) -> list[str]:
        """All new lines. The carriage returns of a progress bar count as line ends."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return self._lines
        self._offset += len(data)
        *whole, self._rest = (self._rest + data).replace(b"\r", b"\n").split(b"\n")
        self._lines += [text for line in whole if (text := line.decode("utf-8", "replace").strip())]
        return self._lines

    def progress(self) -> str | None:
        """The newest progress message of the engine; ``None`` if there is none."""
        for line in reversed(self.read()):
            if line.startswith(PROGRESS_PREFIX):
                return line.removeprefix(PROGRESS_PREFIX)
        return None


class EngineProcess:
    """`python -m slotdeck.engine serve` in its own session, so that it outlives this process and its terminal."""

    def __init__(self, environment: dict[str, str], log: Path) -> None:
        log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if log.exists() and log.stat().st_size > MAX_LOG_BYTES:
            log.replace(log.with_name(log.name + ".1"))
        self.log = LogTail(log)
        with open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as output:
            self._process = subprocess.Popen(
                [*ENGINE_COMMAND, "serve"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment | {"PYTHONUNBUFFERED": "1"},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_until_serving(self, admin: AdminClient, on_progress: Callable[[str], None]) -> Frame:
        """Wait for the engine's first frame, without a time limit: a first start may download a model.

        Raises EngineExitedError if the engine ends instead.
        """
        while True:
            code = self._process.poll()
            if code is not None:
                raise EngineExitedError(code, self.log.read())
            try:
                frame = admin.frame()
                if frame.health != "starting" and frame.engine.pid in (None, self.pid):
                    return frame
            except (NoEngineError, AdminError):
                pass  # Not serving yet.
            if progress := self.log.progress():
                on_progress(progress)
            time.sleep(0.1)

    def stop(self, timeout: float = 10.0) -> None:
        """End the engine: SIGTERM, then SIGKILL after ``timeout`` seconds."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
