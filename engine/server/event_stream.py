"""The answer to a request with streaming: server-sent events in OpenAI's shape."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

from fastapi.responses import Response
from starlette.types import Receive, Scope, Send

from slotdeck.engine.server.client_watch import ClientWatch
from slotdeck.engine.server.completion import logprobs_document
from slotdeck.engine.server.errors import ApiError, log_unexpected
from slotdeck.engine.server.generation import Generation

HEARTBEAT = b": waiting\n\n"
DONE = b"data: [DONE]\n\n"


class EventStream(Response):
    """Streams one generation: the role with the first text, the text, the finish reason, usage, and ``[DONE]``.

    Headers are sent at once, and the comment ``: waiting`` after every ``heartbeat`` seconds without a token. A failure
    after that becomes one error event, followed by ``[DONE]``.
    """

    media_type = "text/event-stream"

    def __init__(self, generation: Generation, watch: ClientWatch, model_id: str, heartbeat: float) -> None:
        # These headers keep proxies from buffering the stream.
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._generation, self._watch, self._heartbeat = generation, watch, heartbeat
        shared = {
            "id": generation.id,
            "object": "chat.completion.chunk",
            "created": generation.created,
            "model": model_id,
        }
        self._head = json.dumps(shared)[:-1]
        self._tail = ', "usage": null' if generation.chat.include_usage else ""
        # Nearly every event is text without log-probabilities. It only has to be put between these two strings.
        sample = self._event(0, {"content": "@"}).decode()
        self._before_text, _, self._after_text = sample.rpartition('"@"')

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for chunk in self._chunks():
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._generation.close()
            self._watch.close()

    async def _chunks(self) -> AsyncIterator[bytes]:
        started: set[int] = set()
        try:
            async for delta in self._generation.deltas(self._heartbeat):
                if delta is None:
                    yield HEARTBEAT
                    continue
                plain = not (delta.index or delta.logprobs or delta.finish_reason)
                if plain and 0 in started and self._generation.chat.sampling.top_logprobs is None:
                    yield f"{self._before_text}{json.dumps(delta.text)}{self._after_text}".encode()
                    continue
                chunk = b""
                if delta.index not in started:
                    started.add(delta.index)
                    chunk += self._event(delta.index, {"role": "assistant", "content": ""})
                if delta.text or delta.logprobs:
                    chunk += self._event(
                        delta.index, {"content": delta.text}, logprobs_document(self._generation, delta.logprobs)
                    )
                if delta.finish_reason:
                    chunk += self._event(delta.index, {}, finish_reason=delta.finish_reason)
                yield chunk
        except ApiError as error:
            yield _error_event(error)
        except Exception as error:
            yield _error_event(log_unexpected(error))
        else:
            if self._generation.chat.include_usage:
                usage = json.dumps(self._generation.usage())
                yield f'data: {self._head}, "choices": [], "usage": {usage}}}\n\n'.encode()
        yield DONE

    def _event(
        self, choice: int, delta: dict[str, str], logprobs: Any = None, finish_reason: str | None = None
    ) -> bytes:
        body = {"index": choice, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
        return f'data: {self._head}, "choices": [{json.dumps(body)}]{self._tail}}}\n\n'.encode()


def _error_event(error: ApiError) -> bytes:
    return f"data: {json.dumps(error.body())}\n\n".encode()
