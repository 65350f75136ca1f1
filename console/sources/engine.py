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

from console.sources.base import Answer, Disconnected, Update
from engine.telemetry.frame import Frame

if TYPE_CHECKING:
    import httpx

    from engine.telemetry.request_detail import RequestDetail

FRAMES_PER_SECOND = 4
SILENCE_LIMIT = 5.0
"""Seconds without a frame after which the connection counts as lost."""
COMMAND_LIMIT = 5.0
"""Seconds that a command may take."""
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 4.0
"""Seconds between attempts to connect: doubled after each failure up to the longest."""
LONGEST_FRAME = 8 << 20
"""Bytes of one line beyond which the other side does not speak our protocol."""


class EngineSource:
    """One engine behind the admin socket at ``socket``."""

    def __init__(self, socket: Path, *, sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep) -> None:
        self.socket = socket
        self._sleep = sleep

    def _client(self) -> httpx.AsyncClient:
        import httpx

        return httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(uds=str(self.socket)),
            base_url="http://engine",
            timeout=httpx.Timeout(COMMAND_LIMIT, read=SILENCE_LIMIT),
            trust_env=False,
        )

    async def updates(self) -> AsyncIterator[Update]:
        """Frames as they come, a :class:`Disconnected` for every failed attempt, for ever."""
        pause = FIRST_PAUSE
        await asyncio.to_thread(importlib.import_module, "httpx")  # a tenth of a second in which keys still work
        while True:
            reason = "the engine closed the connection"
            try:
                async for frame in self._stream():
                    pause = FIRST_PAUSE
                    yield frame
            except Exception as error:
                reason = self._explain(error)
            yield Disconnected(reason)
            await self._sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    async def _stream(self) -> AsyncIterator[Frame]:
        """One connection: frames until the other side ends it. Raises what httpx raises, and ValueError."""
        async with (
            self._client() as client,
            client.stream("GET", "/admin/stream", params={"rate": FRAMES_PER_SECOND}) as response,
        ):
            if response.status_code != 200:
                raise ValueError(f"the admin API answered {response.status_code}")
            pending = bytearray()
            # Lines end at \n only: httpx would also split at U+2028 and its like inside a JSON string.
            async for chunk in response.aiter_raw():
                pending += chunk
                *lines, rest = pending.split(b"\n")
                pending = bytearray(rest)
                if len(pending) > LONGEST_FRAME:
                    raise ValueError("a frame of the engine has no end")
                for line in lines:
                    if line.strip():
                        yield Frame.model_validate_json(bytes(line))

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
        from engine.telemetry.request_detail import RequestDetail

        try:
            async with self._client() as client:
                response = await client.get(_request_path(request_id))
            if response.is_success:
                return RequestDetail.model_validate_json(response.content)
            document = response.json()
        except Exception as error:
            return Answer(False, message=self._explain(error))
        return Answer(False, message=_error_message(document) or f"the admin API answered {response.status_code}")

    async def shutdown(self, force: bool) -> Answer:
        """See :class:`FrameSource`."""
        return await self._command("POST", "/admin/shutdown", {"force": force})

    async def _command(self, method: str, path: str, body: dict[str, Any]) -> Answer:
        try:
            async with self._client() as client:
                response = await client.request(method, path, json=body)
            document = response.json() if response.content else {}
        except Exception as error:
            return Answer(False, message=self._explain(error))
        if response.is_success:
            revision = document.get("revision") if isinstance(document, dict) else None
            return Answer(True, revision=revision if isinstance(revision, int) else None)
        return Answer(
            False,
            message=_error_message(document) or f"the admin API answered {response.status_code}",
            conflict=response.status_code == 409,
        )

    def _explain(self, error: Exception) -> str:
        """One short sentence for what went wrong on the way."""
        import httpx

        if isinstance(error, httpx.ConnectError):
            return f"no engine answers at {self.socket}"
        if isinstance(error, httpx.ReadTimeout):
            return f"the engine has said nothing for {SILENCE_LIMIT:.0f} s"
        if isinstance(error, httpx.TransportError):
            return "the connection to the engine broke"
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            return f"unreadable answer from the engine ({where or 'JSON'}: {first['msg']}); versions may differ"
        if isinstance(error, json.JSONDecodeError):
            return "unreadable answer from the engine"
        return str(error) or type(error).__name__


def _request_path(request_id: str) -> str:
    from urllib.parse import quote

    return f"/admin/requests/{quote(request_id, safe='')}"


def _error_message(document: Any) -> str | None:
    error = document.get("error") if isinstance(document, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    return message if isinstance(message, str) else None
