"""The engine's admin API over its unix socket as a source of frames.

Reads the stream of frames, reconnects with a growing pause, and sends commands. Frames are whole, so a gap in their
sequence needs no repair.
"""

from __future__ import annotations

import asyncio
import importlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from slotdeck.console.client import messages
from slotdeck.console.hosting.process import end_in_words, exit_code, lives, lock_holder
from slotdeck.console.sources.base import Answer, Capabilities, Disconnected, EngineEnd, Past, Update
from slotdeck.engine.settings import SETTINGS
from slotdeck.engine.telemetry.frame import Frame

if TYPE_CHECKING:
    import httpx

    from slotdeck.engine.telemetry.requests.detail import RequestDetail

FRAMES_PER_SECOND = 4
SILENCE_LIMIT = 5.0
"""Seconds without a frame after which the connection counts as lost."""
COMMAND_LIMIT = 5.0
"""Longest time for a command, in seconds."""
FIRST_PAUSE, MAX_PAUSE = 0.25, 4.0
"""Seconds between attempts to connect. The pause doubles after each failure, up to the longest."""
MAX_FRAME = 8 << 20
"""Longest line in bytes. Whoever sends a longer one does not speak this protocol."""


class EngineSource:
    """One engine behind the admin socket at ``socket``. ``log`` is its log file, if there is one."""

    def __init__(
        self, socket: Path, *, log: Path | None = None, sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep
    ) -> None:
        self.socket = socket
        self._log = log
        self._sleep = sleep
        self._last: Frame | None = None
        self._pid: int | None = None
        """Process id of the engine that sent the last frame, if this machine has such a process."""

    @property
    def capabilities(self) -> Capabilities:
        """An engine takes every command."""
        return Capabilities(frozenset(name for name, setting in SETTINGS.items() if setting.live), cancel=True)

    def _client(self) -> httpx.AsyncClient:
        import httpx

        return httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(uds=str(self.socket)),
            base_url="http://engine",
            timeout=httpx.Timeout(COMMAND_LIMIT, read=SILENCE_LIMIT),
            trust_env=False,
        )

    async def updates(self) -> AsyncIterator[Update]:
        """Frames as they come, and a :class:`Disconnected` for every failed attempt, without end.

        The first frame of each connection is followed by the :class:`Past`. After a lost connection to an engine that
        still runs, the first frame has the events that were missed.
        """
        pause = FIRST_PAUSE
        await asyncio.to_thread(importlib.import_module, "httpx")  # takes a tenth of a second; keys work meanwhile
        while True:
            reason = "the engine closed the connection"
            try:
                begun = False
                async for frame in self._stream():
                    pause = FIRST_PAUSE
                    self._remember(frame)
                    yield frame
                    if not begun and (past := await self._past()) is not None:
                        yield past
                    begun = True
            except Exception as error:
                reason = self._explain(error)
            yield self._lost(reason)
            await self._sleep(pause)
            pause = min(pause * 2, MAX_PAUSE)

    def _remember(self, frame: Frame) -> None:
        before, self._last = self._last, frame
        pid = frame.engine.pid
        if before is None or before.boot_id != frame.boot_id:
            # The process id of an engine in a container means nothing here.
            self._pid = pid if pid is not None and lives(pid) else None

    def _lost(self, reason: str) -> Disconnected:
        """Find out whether the engine has ended, another one is starting, or only the connection was lost."""
        pid = self._pid
        if pid is not None and not lives(pid):
            if (other := lock_holder(self.socket)) is not None:
                return Disconnected(f"the engine has ended, another one is loading, pid {other}")
            code = exit_code(self.socket, pid)
            clean = code == 0 or (code is None and self._last is not None and self._last.health == "draining")
            how = "it was stopped" if clean else end_in_words(code)
            return Disconnected("the engine has ended", end=EngineEnd(how, clean, self._log))
        if self._last is None and (other := lock_holder(self.socket)) is not None:
            return Disconnected(f"the engine is still loading, pid {other}")
        return Disconnected(reason)

    async def _stream(self) -> AsyncIterator[Frame]:
        """The frames of one connection. Raises the errors of httpx, and ValueError."""
        async with (
            self._client() as client,
            client.stream("GET", "/admin/stream", params=self._stream_parameters()) as response,
        ):
            if response.status_code != 200:
                raise ValueError(messages.refusal(response.status_code, None))
            pending = bytearray()
            # Lines end at \n only: httpx would also split at U+2028 and its like inside a JSON string.
            async for chunk in response.aiter_raw():
                pending += chunk
                *lines, rest = pending.split(b"\n")
                pending = bytearray(rest)
                if len(pending) > MAX_FRAME:
                    raise ValueError("a frame of the engine has no end")
                for line in lines:
                    if line.strip():
                        yield Frame.model_validate_json(bytes(line))

    async def _past(self) -> Past | None:
        """The frames that the engine keeps of the last minutes; ``None`` if it does not send them."""
        try:
            async with self._client() as client:
                response = await client.get("/admin/past")
            if not response.is_success:
                return None
            return await asyncio.to_thread(_frames, response.content)
        except Exception:
            return None  # The plots then begin now. If something is wrong, the stream will fail too.

    def _stream_parameters(self) -> dict[str, str]:
        """Parameters of the stream: its rate, and after a lost connection the last event that was seen."""
        wanted = {"rate": str(FRAMES_PER_SECOND)}
        if self._last is not None and self._last.event_cursor is not None:
            wanted |= {"boot_id": self._last.boot_id, "events_after": str(self._last.event_cursor)}
        return wanted

    async def change(self, changes: dict[str, Any], revision: int | None) -> Answer:
        """See :class:`FrameSource`."""
        body: dict[str, Any] = {"changes": changes, "source": "console"}
        if revision is not None:
            body["revision"] = revision
        return await self._command("PATCH", "/admin/settings", body)

    async def cancel(self, request_id: str) -> Answer:
        """See :class:`FrameSource`."""
        return await self._command("POST", f"{_request_path(request_id)}/cancel", {})

    async def request(self, request_id: str) -> RequestDetail | Answer:
        """See :class:`FrameSource`."""
        from slotdeck.engine.telemetry.requests.detail import RequestDetail

        try:
            async with self._client() as client:
                response = await client.get(_request_path(request_id))
            if response.is_success:
                return RequestDetail.model_validate_json(response.content)
            document = response.json()
        except Exception as error:
            return Answer(False, message=self._explain(error))
        return Answer(False, message=messages.refusal(response.status_code, document))

    async def shutdown(self, force: bool) -> Answer:
        """See :class:`FrameSource`."""
        return await self._command("POST", "/admin/shutdown", {"force": force})

    async def _command(self, method: str, path: str, body: dict[str, Any]) -> Answer:
        try:
            async with self._client() as client:
                response = await client.request(method, path, json=body)
            document = response.json() if response.content else {}
        except Exception as error:
            return Answer(False, message=self._explain(error), unknown=not _never_sent(error))
        if response.is_success:
            revision = document.get("revision") if isinstance(document, dict) else None
            return Answer(True, revision=revision if isinstance(revision, int) else None)
        return Answer(
            False,
            message=messages.refusal(response.status_code, document),
            conflict=response.status_code == 409,
        )

    def _explain(self, error: Exception) -> str:
        """One short sentence that says what went wrong."""
        import httpx

        if isinstance(error, httpx.ConnectError):
            return messages.no_engine(self.socket)
        if isinstance(error, httpx.ReadTimeout):
            return messages.silent(SILENCE_LIMIT)
        if isinstance(error, httpx.TransportError):
            return messages.BROKEN
        if isinstance(error, ValidationError):
            return messages.unreadable(messages.validation_problem(error.errors()))
        if isinstance(error, json.JSONDecodeError):
            return messages.UNREADABLE
        return str(error) or type(error).__name__


def _frames(lines: bytes) -> Past:
    return Past(tuple(Frame.model_validate_json(line) for line in lines.split(b"\n") if line))


def _never_sent(error: Exception) -> bool:
    """True if the other side cannot have received the command."""
    import httpx

    return isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout))


def _request_path(request_id: str) -> str:
    from urllib.parse import quote

    return f"/admin/requests/{quote(request_id, safe='')}"
