"""Servers that queue, run two at once, cut prompts, hold texts back, or speak Ollama's own API alone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.support.fake_openai import FakeOpenAI, Reply, busy

PACE = 0.01
"""Seconds of one token."""


class SlottedServer(FakeOpenAI):
    """Runs ``slots`` answers at the same time; each token takes :data:`PACE`.

    ``kept`` cuts prompts to so many tokens without a word, ``most`` refuses longer ones, ``queue`` may wait.
    """

    def __init__(
        self, slots: int, *, queue: int = 100, kept: int | None = None, most: int | None = None, usage: bool = True
    ) -> None:
        super().__init__()
        self.script = lambda _number, body: self._reply(body)
        self.count = self._count
        self.slots = asyncio.Semaphore(slots)
        self.places = slots + queue
        self.taken = 0
        self.kept = kept
        self.most = most
        self.usage = usage
        self.remembers = True
        """It can repeat what stands at the beginning of what it read."""

    def _count(self, body: dict[str, Any]) -> int:
        tokens = words(body)
        return tokens if self.kept is None else min(tokens, self.kept)

    def _reply(self, body: dict[str, Any]) -> Reply:
        if self.taken >= self.places:
            return busy()
        self.taken += 1
        prompt = body["messages"][-1]["content"]
        tokens = words(body)
        if self.most is not None and tokens > self.most:
            self.taken -= 1
            return Reply(status=400, body={"error": {"message": f"{tokens} tokens exceed {self.most}"}})
        if "The code word is " in prompt:
            cut = self.kept is not None and tokens > self.kept
            code = prompt.partition("The code word is ")[2].partition(". ")[0]
            return Reply(pieces=["It is ", "unknown" if cut or not self.remembers else code], usage=self.usage)
        return Reply(pieces=[" la"] * body["max_tokens"], usage=self.usage)

    async def _stream(self, reply: Reply, prompt: int) -> AsyncIterator[bytes]:
        try:
            async with self.slots:
                async for event in super()._stream(reply, prompt):
                    yield event
                    await asyncio.sleep(PACE)
        finally:
            self.taken -= 1


def words(body: dict[str, Any]) -> int:
    """What these servers take a prompt for: a token for each word and five for the template."""
    return len(body["messages"][-1]["content"].split()) + 5


class BufferingServer(SlottedServer):
    """Gives each answer in one piece at its end, as some proxies do."""

    async def _stream(self, reply: Reply, prompt: int) -> AsyncIterator[bytes]:
        yield b"".join([event async for event in super()._stream(reply, prompt)])


class NativeOllama:
    """`/api/tags`, `/api/ps` and `/api/chat`, and no `/v1`; prompts are cut to ``kept`` tokens."""

    def __init__(self, slots: int, kept: int) -> None:
        self.slots = asyncio.Semaphore(slots)
        self.kept = kept
        self.bodies: list[dict[str, Any]] = []

    def routes(self) -> list[Route]:
        return [
            Route("/api/tags", self._tags),
            Route("/api/ps", self._tags),
            Route("/api/chat", self._chat, methods=["POST"]),
        ]

    async def _tags(self, _request: Request) -> Response:
        return JSONResponse({"models": [{"name": "tiny:latest", "context_length": self.kept}]})

    async def _chat(self, request: Request) -> Response:
        body = await request.json()
        self.bodies.append(body)
        return StreamingResponse(self._lines(body), media_type="application/x-ndjson")

    async def _lines(self, body: dict[str, Any]) -> AsyncIterator[bytes]:
        most = body["options"]["num_predict"]
        async with self.slots:
            for _ in range(most):
                yield _line({"message": {"role": "assistant", "content": " la"}, "done": False})
                await asyncio.sleep(PACE)
        counts = {"prompt_eval_count": min(words(body), self.kept), "eval_count": most, "done_reason": "length"}
        yield _line({"message": {"role": "assistant", "content": ""}, "done": True} | counts)


def _line(document: Any) -> bytes:
    return json.dumps(document).encode() + b"\n"
