"""A small engine for the console: it serves frames, settings with revisions, and shutdown over the admin socket.

In a test: ``async with FrameEngine(path) as engine``. By itself, to look at the console:
``python -m tests.support.frame_engine PATH [situation|busy]``, then the console over it:
``python -m tests.support.frame_engine --console PATH``.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from slotdeck.engine.settings import SETTINGS
from slotdeck.engine.telemetry.frame import Frame
from tests.support import frames

MAX_SLOTS = 64


class FrameEngine:
    """``picture(step)`` gives the frames; the engine adds the settings in force and the events of changes."""

    def __init__(self, socket: Path, picture: Callable[[int], Frame] | None = None, *, boot: str = "boot-1") -> None:
        self.socket = socket
        self.picture = picture or (lambda _step: frames.steady())
        self.boot = boot
        self.limits = self.picture(0).limits
        self.rate: float | None = None
        """Frames a second; None: as many as the client asks for."""
        self.calls: list[tuple[str, str, Any]] = []
        self.past: tuple[Frame, ...] = ()
        """The frames that it sends as its last ten minutes."""
        self.health = "ok"
        self.ended = asyncio.Event()
        self.drain_frames = 2
        """Number of frames that it still sends after a shutdown was requested."""
        self._events: list[Any] = []
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> FrameEngine:
        self._server = await asyncio.start_unix_server(self._serve, str(self.socket))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Close the socket and all connections, as if the engine had died."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self.socket.unlink(missing_ok=True)
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        self.ended.set()

    def frame(self, step: int) -> Frame:
        """The frame number ``step`` of the stream."""
        picture = self.picture(step)
        events, self._events = tuple(self._events), []
        if step == 0 or picture.events != self.picture(step - 1).events:
            events = picture.events + events
        update = {"boot_id": self.boot, "sequence": step, "limits": self.limits, "health": self.health}
        return picture.model_copy(update=update | {"events": events})

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            while (head := await reader.readuntil(b"\r\n\r\n")) != b"":
                method, path, _ = head.decode().split(" ", 2)
                headers = dict(line.lower().split(": ", 1) for line in head.decode().split("\r\n")[1:] if ": " in line)
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                document = json.loads(body) if body else None
                self.calls.append((method, path, document))
                if path.startswith("/admin/stream"):
                    asked = parse_qs(path.partition("?")[2])
                    rate = self.rate or float(asked.get("rate", ["4"])[0])
                    await self._stream(writer, rate)
                    break
                if path == "/admin/past" and self.past:
                    status, text = 200, b"".join(frame.model_dump_json().encode() + b"\n" for frame in self.past)
                else:
                    status, answer = self.answer(method, path, document)
                    text = json.dumps(answer).encode()
                writer.write(
                    b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
                    % (status, len(text))
                )
                writer.write(text)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._connections.discard(task)
            writer.close()

    async def _stream(self, writer: asyncio.StreamWriter, rate: float) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        step, left = 0, self.drain_frames
        while left > 0:
            if self.health == "draining":
                left -= 1
            line = self.frame(step).model_dump_json(exclude_defaults=True).encode() + b"\n"
            writer.write(b"%x\r\n%s\r\n" % (len(line), line))
            await writer.drain()
            step += 1
            await asyncio.sleep(1 / rate)
        writer.write(b"0\r\n\r\n")
        self.ended.set()

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        """Status and JSON document of the answer to a call other than the stream."""
        if path == "/admin/frame":
            return 200, self.frame(1).model_dump(mode="json")
        if (method, path) == ("PATCH", "/admin/settings"):
            return self._change(body)
        if path == "/admin/shutdown":
            self.health = "draining"
            if body.get("force"):
                self.drain_frames = 1
            return 202, {}
        if path.endswith("/cancel"):
            return 200, {"cancelled": True}
        return 404, {"error": {"message": "no such route"}}

    def _change(self, body: dict[str, Any]) -> tuple[int, Any]:
        if body.get("revision") not in (None, self.limits.revision):
            return 409, {"error": {"message": f"settings are at revision {self.limits.revision}", "code": "conflict"}}
        for name, value in body["changes"].items():
            most = MAX_SLOTS if name == "slots" else SETTINGS[name].maximum
            if value > (most or 0):
                return 422, {"error": {"message": f"{name}: at most {most} fit this pool", "param": name}}
            self.set(**{name: value})
        return 200, self.limits.model_dump()

    def set(self, **changes: int) -> None:
        """Change settings as another admin would."""
        self.limits = self.limits.model_copy(update=changes | {"revision": self.limits.revision + 1})
        text = ", ".join(f"{name} set to {value}" for name, value in changes.items())
        self._events.append(frames.event(0, "setting_changed", f"{text} (revision {self.limits.revision})"))


async def _main(socket: Path, situation: str) -> None:
    picture = frames.busy if situation == "busy" else (lambda _step: getattr(frames, situation)())
    engine = FrameEngine(socket, picture)
    engine.drain_frames = 8
    async with engine:
        print("ready", flush=True)
        await engine.ended.wait()


if __name__ == "__main__":
    if sys.argv[1] == "--console":
        from slotdeck.console.app import run_console
        from slotdeck.console.sources.engine import EngineSource

        path = Path(sys.argv[2])
        sys.exit(run_console(EngineSource(path), hosted="hosted" in sys.argv, socket=path))
    asyncio.run(_main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "steady"))
