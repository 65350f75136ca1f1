"""A real engine process on the embedded model, for tests that talk to it as a user would."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from slotdeck.engine.telemetry.frame import Frame

START_PATIENCE = 180.0
PATIENCE = 60.0


class RealEngine:
    """``python -m slotdeck.engine serve`` with its own port, socket and configuration. Use as a context manager.

    ``command`` is what Python runs in its place, with the same settings. ``output`` is a file descriptor for stdout and
    stderr in place of the file ``log``.
    """

    def __init__(
        self,
        *,
        command: Sequence[str] = ("-m", "slotdeck.engine", "serve"),
        output: int | None = None,
        **settings: Any,
    ) -> None:
        self._command, self._output = command, output
        self._folder = tempfile.TemporaryDirectory(prefix="slotdeck-test-")
        self.folder = Path(self._folder.name)
        self.socket = self.folder / "engine.sock"
        self.log = self.folder / "engine.log"
        self._settings = {"port": 0, "socket": self.socket} | settings

    def __enter__(self) -> RealEngine:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("SLOTDECK_")}
        if "SLOTDECK_CACHE" in os.environ:
            environment["SLOTDECK_CACHE"] = os.environ["SLOTDECK_CACHE"]
        environment |= {f"SLOTDECK_{name.upper()}": str(value) for name, value in self._settings.items()}
        environment["XDG_CONFIG_HOME"] = environment["XDG_STATE_HOME"] = str(self.folder)
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-P", *self._command],
                stdin=subprocess.DEVNULL,
                stdout=log if self._output is None else self._output,
                stderr=subprocess.STDOUT,
                env=environment,
            )
        self.admin = httpx.Client(
            transport=httpx.HTTPTransport(uds=str(self.socket)), base_url="http://engine", timeout=PATIENCE
        )
        deadline = time.monotonic() + START_PATIENCE
        while True:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the engine did not start:\n{self.log.read_text()}")
            try:
                url = self.frame().engine.url
                break
            except httpx.TransportError:
                time.sleep(0.05)  # nothing to await: the process is starting
        assert url is not None
        self.url = url
        return self

    def __exit__(self, *error: object) -> None:
        self.admin.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._folder.cleanup()

    def frame(self) -> Frame:
        return Frame.model_validate_json(self.admin.get("/admin/frame").text)

    def change(self, **changes: int) -> httpx.Response:
        return self.admin.patch("/admin/settings", json={"changes": changes, "source": "test"})

    def wait_for(self, condition: Any) -> Frame:
        """The first frame of the engine's stream for which ``condition`` holds."""
        with self.admin.stream("GET", "/admin/stream?rate=10") as response:
            deadline = time.monotonic() + PATIENCE
            for line in response.iter_lines():
                frame = Frame.model_validate_json(line)
                if condition(frame):
                    return frame
                if time.monotonic() > deadline:
                    raise AssertionError(f"it never happened; the last frame: {frame!r}")
        raise AssertionError("the stream ended")

    def wait_until_idle(self) -> Frame:
        return self.wait_for(lambda frame: frame.running == 0 and frame.waiting_count == 0)
