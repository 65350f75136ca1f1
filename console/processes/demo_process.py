"""A demo in a process of its own, so that its traffic and the screen never wait for each other."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Protocol

from slotdeck.console.demo.state import Event
from slotdeck.console.demo.wanted import Wanted
from slotdeck.engine.paths import state_folder

MAX_EVENT = 4 << 20
"""Bytes of one event."""


class DemoControl(Protocol):
    """Runs demos for the Demo page."""

    async def run(self, wanted: Wanted, folder: Path, on_event: Callable[[Event], None]) -> None:
        """Run a demo and pass its events to ``on_event``. Returns after the event ``end``."""
        ...

    def stop(self) -> None:
        """End the demo early. It restores the settings and sends its ``end``."""
        ...


class DemoProcess:
    """``python -m slotdeck.console.demo`` against the engine behind ``socket``.

    It ends when its stdin closes, so also when this process dies; what it complains about goes to ``demo.log``.
    """

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        return state_folder() / "demo.log"

    async def run(self, wanted: Wanted, folder: Path, on_event: Callable[[Event], None]) -> None:
        process = self._process = self._start(wanted, folder)
        reader = asyncio.StreamReader(limit=MAX_EVENT)
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), process.stdout)
        ended = False
        try:
            while line := await reader.readline():
                event: Event = json.loads(line)
                ended = ended or event["event"] == "end"
                on_event(event)
        finally:
            self.stop()
        code = await asyncio.to_thread(process.wait)
        if not ended:
            on_event({"event": "end", "how": "failed", "text": f"the demo failed (exit {code}), see {self.log}"})

    def _start(self, wanted: Wanted, folder: Path) -> subprocess.Popen[bytes]:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-P", "-m", "slotdeck.console.demo", str(self._socket), str(folder)]
        with self.log.open("wb") as log:
            # In a session of its own, because ctrl+c and ctrl+z in the terminal are meant for the console.
            return subprocess.Popen(
                [*command, json.dumps(asdict(wanted))], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def stop(self) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
