"""A small OpenAI-compatible server with scripted behaviour, for tests of clients."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route


@dataclass
class Reply:
    """The answer to one chat request."""

    pieces: list[str] = field(default_factory=lambda: ["Hello", " there", "."])
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: Any = None
    """JSON body, if the status is not 200."""
    usage: bool = True
    error_event: str | None = None
    """An error event, sent after the pieces instead of the end."""
    cut: bool = False
    """Close the stream after the pieces, without an end."""
    raw: bytes | None = None
    """Bytes to send instead of everything else."""
    hold: asyncio.Event | None = None
    """The first piece is sent when this is set."""
    comments: int = 0
    """Number of heartbeats before the first piece."""


def busy(retry_after: str | None = "2") -> Reply:
    headers = {} if retry_after is None else {"Retry-After": retry_after}
    return Reply(status=503, headers=headers, body={"error": {"message": "the queue is full", "code": "queue_full"}})


class FakeOpenAI:
    """``script(number, body)`` gives the reply to request ``number``, from 0 on. ``bodies`` keeps what clients sent."""

    def __init__(self, script: Callable[[int, dict[str, Any]], Reply] | None = None) -> None:
        self.script = script or (lambda _number, _body: Reply())
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.context: int | None = 2048
        self.count = prompt_tokens
        """Number of tokens of a prompt, as the usage reports it."""
        self.key: str | None = None
        self.open_streams = 0
        self.connections: set[tuple[str, int]] = set()
        self.app = Starlette(routes=self.routes())

    def routes(self) -> list[Route]:
        return [
            Route("/v1/models", self._models),
            Route("/v1/chat/completions", self._chat, methods=["POST"]),
        ]

    def _refused(self, request: Request) -> Response | None:
        if self.key is None or request.headers.get("Authorization") == f"Bearer {self.key}":
            return None
        return JSONResponse({"error": {"message": "wrong API key", "code": "invalid_api_key"}}, 401)

    async def _models(self, request: Request) -> Response:
        row: dict[str, Any] = {"id": "fake", "object": "model"}
        if self.context is not None:
            row["context_length"] = self.context
        return self._refused(request) or JSONResponse({"object": "list", "data": [row]})

    async def _chat(self, request: Request) -> Response:
        body = await request.json()
        if (refused := self._refused(request)) is not None:
            return refused
        number = len(self.bodies)
        self.bodies.append(body)
        self.keys.append((request.headers.get("Authorization") or "").removeprefix("Bearer ") or None)
        assert request.client is not None
        self.connections.add((request.client.host, request.client.port))
        reply = self.script(number, body)
        if reply.status != 200:
            return JSONResponse(reply.body, reply.status, reply.headers)
        return StreamingResponse(self._stream(reply, self.count(body)), media_type="text/event-stream")

    async def _stream(self, reply: Reply, prompt: int) -> AsyncIterator[bytes]:
        self.open_streams += 1
        try:
            if reply.raw is not None:
                yield reply.raw
                return
            yield _chunk({"role": "assistant", "content": ""})
            for _ in range(reply.comments):
                yield b": still waiting\n\n"
            if reply.hold is not None:
                await reply.hold.wait()
            for piece in reply.pieces:
                yield _chunk({"content": piece})
                await asyncio.sleep(0)
            if reply.error_event is not None:
                yield _event({"error": {"message": reply.error_event}})
            if reply.cut or reply.error_event is not None:
                return
            yield _chunk({}, "stop")
            if reply.usage:
                count = len(reply.pieces)
                yield _event({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": count}})
            yield b"data: [DONE]\n\n"
        finally:
            self.open_streams -= 1


def prompt_tokens(body: dict[str, Any]) -> int:
    """Tokens of a prompt as this server counts them: 20 for each message."""
    return 20 + 20 * (len(body["messages"]) - 1)


async def until(condition: Callable[[], bool]) -> None:
    """Poll until ``condition`` holds."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


def _event(document: Any) -> bytes:
    return b"data: " + json.dumps(document, ensure_ascii=False).encode() + b"\n\n"


def _chunk(delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
    return _event({"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]})


class _QuietServer(uvicorn.Server):
    def capture_signals(self) -> AbstractContextManager[None]:
        return nullcontext()  # Signals belong to the tests.


def quiet_server(config: uvicorn.Config) -> uvicorn.Server:
    """A uvicorn server that installs no signal handlers."""
    return _QuietServer(config)


@asynccontextmanager
async def serving(app: Starlette) -> AsyncIterator[str]:
    """Serve the app on a free loopback port; yields its base URL."""
    server = quiet_server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning", lifespan="off"))
    task = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        server.force_exit = True
        await task
