"""One accepted request from its token ids to its text: submit, follow the outputs, stop strings, usage, end."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass

from engine.core.events import QueueFullError, RequestTooLargeError
from engine.core.request import Request, SamplingParams, Timeline
from engine.loop import EngineUnavailableError, Output
from engine.server.chat_request import ChatRequest, read_chat_request, read_json
from engine.server.context import ServerContext
from engine.server.errors import NO_RETRY, ApiError, failed, invalid, unavailable
from engine.text.detokenizer import Detokenizer
from engine.text.stop import StopMatcher
from engine.text.template import ChatTemplateError


@dataclass(frozen=True, slots=True)
class Prepared:
    """A valid chat request and its prompt."""

    chat: ChatRequest
    token_ids: list[int]


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that became certain; ``finish_reason`` with the last one. ``None``: nothing came for a heartbeat."""

    text: str
    finish_reason: str | None = None


def most_tokens(context: ServerContext) -> int:
    """Most tokens (prompt + output) of one request: the context, or the whole pool where that is smaller."""
    return min(context.engine.limits.context, context.engine.pool_tokens)


def prepare(context: ServerContext, body: bytes) -> Prepared:
    """Body to prompt; runs in a thread of the intake. Raises ApiError for whatever the client can fix."""
    chat = read_chat_request(read_json(body), context.model.id)
    text, limit = context.text, most_tokens(context)
    if not text.has_chat_template:
        raise invalid("messages", "this model has no chat template, so it cannot chat; serve an instruct model")
    fewest = max(text.fewest_tokens(sum(len(message["content"]) for message in chat.messages)), len(chat.messages))
    if fewest >= limit:
        raise _too_long(f"at least {fewest}", limit)
    try:
        token_ids = text.encode_chat(chat.messages)
    except ChatTemplateError as error:
        raise invalid("messages", str(error), code="chat_template_error") from error
    if not token_ids:
        raise invalid("messages", "the conversation renders to an empty prompt")
    if len(token_ids) >= limit:
        raise _too_long(str(len(token_ids)), limit)
    return Prepared(chat, token_ids)


def _too_long(count: str, limit: int) -> ApiError:
    return invalid(
        "messages",
        f"the prompt has {count} tokens, but the context of this server is {limit} tokens and one must be left for "
        f"the answer: send at most {limit - 1}, or have the admin raise --context",
        code="context_length_exceeded",
    )


class Generation:
    """An accepted request. ``close`` must be called; it cancels whatever has not ended."""

    def __init__(self, context: ServerContext, prepared: Prepared, user: str, arrival: float) -> None:
        """Submit to the engine. Raises ApiError 400 or 503, and has then counted the request's end."""
        engine, chat = context.engine, prepared.chat
        self.id = f"chatcmpl-{uuid.uuid4().hex}"
        self.created = int(time.time())
        self.chat = chat
        self.num_prompt_tokens = len(prepared.token_ids)
        self.num_output_tokens = 0
        self._context = context
        self._stop_token_ids = context.model.stop_token_ids | context.text.end_token_ids
        self._detokenizer = Detokenizer(context.text)
        self._stop = StopMatcher(chat.stops)
        left = most_tokens(context) - self.num_prompt_tokens
        if left < 1:  # the context was lowered since the prompt was measured
            context.engine.telemetry.count_invalid()
            raise _too_long(str(self.num_prompt_tokens), left + self.num_prompt_tokens)
        request = Request(
            id=self.id,
            user=user,
            token_ids=prepared.token_ids,
            sampling=SamplingParams(
                max_tokens=left if chat.max_tokens is None else min(chat.max_tokens, left),
                temperature=chat.temperature,
                top_p=chat.top_p,
                top_k=chat.top_k,
                seed=chat.seed,
                stop_token_ids=self._stop_token_ids,
            ),
            timeline=Timeline(arrival=arrival, queued=time.monotonic()),
        )
        self._outputs = context.bridge.open(self.id, engine.cancel)
        try:
            engine.submit(request)
        except BaseException as error:
            self._outputs.ended = True  # the engine does not know it
            self.close()
            raise _refusal(context, user, error) from error

    async def pieces(self, heartbeat: float | None) -> AsyncIterator[Piece | None]:
        """Text as it comes; the last piece has a finish reason. ``None`` after ``heartbeat`` seconds of silence.

        Raises ApiError when the request failed, was cancelled or its client is gone.
        """
        while True:
            outputs = await self._outputs.next(heartbeat)
            if not outputs:
                yield None
            for output in outputs:
                piece = self._read(output)
                if piece.text or piece.finish_reason:
                    yield piece
                if piece.finish_reason:
                    return

    def _read(self, output: Output) -> Piece:
        if output.error is not None:
            raise unavailable(output.error, "engine_unavailable", 5) if output.unserved else failed(output.error)
        text = ""
        for index, token_id in enumerate(output.token_ids, start=1):
            self.num_output_tokens += 1
            ends = index == len(output.token_ids) and output.finish_reason == "stop"
            if not (ends and token_id in self._stop_token_ids):
                text += self._stop.push(self._detokenizer.push(token_id))
            if self._stop.matched:
                return self._matched(text, output)
        if output.finish_reason == "cancelled":
            raise ApiError(
                503,
                "the request was cancelled by the server's admin",
                type="server_error",
                code="request_cancelled",
                headers=NO_RETRY,
            )
        if output.finish_reason is not None:
            text += self._stop.push(self._detokenizer.flush())
            if self._stop.matched:
                return self._matched(text, output)
            text += self._stop.flush()
        return Piece(text, output.finish_reason)

    def _matched(self, text: str, output: Output) -> Piece:
        """A stop string is complete with the newest token: the rest of what the engine computes is dropped."""
        if output.finish_reason is None:
            self._context.engine.finish(self.id, self.num_output_tokens)
            self._outputs.ended = True
        return Piece(text, "stop")

    def usage(self) -> dict[str, int]:
        return {
            "prompt_tokens": self.num_prompt_tokens,
            "completion_tokens": self.num_output_tokens,
            "total_tokens": self.num_prompt_tokens + self.num_output_tokens,
        }

    def client_left(self) -> None:
        """Cancel in the engine at once, in whatever state it is."""
        self._outputs.end("the client went away")

    def close(self) -> None:
        """Forget the outputs; cancels a request that has not ended."""
        self._context.bridge.close(self._outputs)


def _refusal(context: ServerContext, user: str, error: BaseException) -> BaseException:
    """The engine's refusal as an answer, its end counted. The engine itself counts a full queue."""
    telemetry = context.engine.telemetry
    if isinstance(error, QueueFullError):
        pace = telemetry.wait_estimate(1, context.engine.limits.slots)
        return unavailable(f"{error}; try again later", "queue_full", min(pace or 1.0, 30.0))
    if isinstance(error, EngineUnavailableError):
        telemetry.count_rejected(user, str(error))
        return unavailable(str(error), "engine_unavailable", 5)
    if isinstance(error, RequestTooLargeError):
        telemetry.count_invalid()
        return invalid("messages", str(error), code="context_length_exceeded")
    telemetry.count_failed_before_queue()
    return error
