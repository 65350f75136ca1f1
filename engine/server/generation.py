"""One accepted call from its token ids to its answers: submit, follow the outputs, usage, end."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

from slotdeck.engine.core.events import QueueFullError, RequestTooLargeError
from slotdeck.engine.core.request import Request, Timeline
from slotdeck.engine.loop.engine_loop import EngineUnavailableError
from slotdeck.engine.loop.outputs import Output
from slotdeck.engine.server.chat_request import ChatRequest, read_chat_request, read_json
from slotdeck.engine.server.choice import Choice, Delta
from slotdeck.engine.server.context import ServerContext
from slotdeck.engine.server.errors import NO_RETRY, TOO_LONG, ApiError, failed, invalid, unavailable
from slotdeck.engine.text.template import ChatTemplateError


@dataclass(frozen=True, slots=True)
class Prepared:
    """A valid chat request and its prompt."""

    chat: ChatRequest
    token_ids: list[int]


def max_request_tokens(context: ServerContext) -> int:
    """Most tokens (prompt + output) of one request: the context, or the whole pool where that is smaller."""
    return min(context.engine.limits.context, context.engine.pool_tokens)


def prepare(context: ServerContext, body: bytes | bytearray) -> Prepared:
    """Body to prompt; runs in a thread of the tokenizer pool. Raises ApiError for whatever the client can fix."""
    chat = read_chat_request(read_json(body), context.model.id, context.model.vocabulary)
    depth = context.engine.limits.queue
    if chat.n > depth + 1:  # the first computes the prompt while the others wait
        raise invalid("n", f"'n' is {chat.n}, but the queue of this server holds {depth}: ask for at most {depth + 1}")
    text, limit = context.text, max_request_tokens(context)
    if not text.has_chat_template:
        raise invalid("messages", "this model has no chat template, so it cannot chat; serve an instruct model")
    fewest = max(text.min_num_tokens(sum(len(message["content"]) for message in chat.messages)), len(chat.messages))
    if fewest >= limit:
        raise _too_long(f"at least {fewest}", limit)
    try:
        token_ids = text.encode_chat(chat.messages)
    except ChatTemplateError as error:
        logged = "its messages do not fit the chat template"  # whose own sentence may quote them
        raise invalid("messages", str(error), code="chat_template_error", logged=logged) from error
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
        code=TOO_LONG,
    )


class Generation:
    """An accepted call: one request for each answer wanted, one stream of their deltas.

    ``close`` must be called; it cancels whatever has not ended.
    """

    def __init__(self, context: ServerContext, prepared: Prepared, user: str, arrival: float) -> None:
        """Submit to the engine, all answers or none. Raises ApiError 400 or 503, and has then counted the ends."""
        engine, chat = context.engine, prepared.chat
        self.id = f"chatcmpl-{uuid.uuid4().hex}"
        self.created = int(time.time())
        self.chat = chat
        self.num_prompt_tokens = len(prepared.token_ids)
        self._cached_tokens = 0
        self._context = context
        left = max_request_tokens(context) - self.num_prompt_tokens
        if left < 1:  # the context was lowered since the prompt was measured
            too_long = _too_long(str(self.num_prompt_tokens), left + self.num_prompt_tokens)
            engine.telemetry.count_too_long(user, too_long.message)
            raise too_long
        end_token_ids = context.model.stop_token_ids | context.text.end_token_ids
        timeline = Timeline(arrival=arrival, queued=time.monotonic())
        requests = [
            Request(
                id=f"{self.id}-{index}" if index else self.id,
                user=user,
                token_ids=list(prepared.token_ids),
                sampling=chat.sampling.params(left, end_token_ids, index),
                timeline=replace(timeline),
            )
            for index in range(chat.n)
        ]
        stop_token_ids = chat.sampling.stop_tokens(end_token_ids)
        self._choices = {
            request.id: Choice(index, context.text, chat.stops, chat.sampling.min_tokens, stop_token_ids)
            for index, request in enumerate(requests)
        }
        self._outputs = context.output_router.open(list(self._choices), engine.cancel)
        for _ in requests[1:]:
            engine.telemetry.count_received()
        try:
            engine.submit(*requests)
        except BaseException as error:
            self._outputs.forget(*self._choices)  # the engine does not know them
            self.close()
            raise _refusal(context, user, error, chat.n) from error

    async def deltas(self, heartbeat: float | None) -> AsyncIterator[Delta | None]:
        """Text as it comes; the last delta of each answer has a finish reason. ``None`` after ``heartbeat`` seconds
        of silence.

        Raises ApiError when a request failed, was cancelled or the client is gone.
        """
        while not all(choice.ended for choice in self._choices.values()):
            outputs = await self._outputs.next(heartbeat)
            if not outputs:
                yield None
            for output in outputs:
                choice = self._choices[output.request_id]
                if not choice.ended and (delta := self._read(choice, output)):
                    yield delta

    def _read(self, choice: Choice, output: Output) -> Delta:
        if output.error is not None:
            raise unavailable(output.error, "engine_unavailable", 5) if output.unserved else failed(output.error)
        if output.finish_reason == "cancelled":
            raise ApiError(
                503,
                "the request was cancelled by the server's admin",
                type="server_error",
                code="request_cancelled",
                headers=NO_RETRY,
            )
        if choice.index == 0:
            self._cached_tokens = output.cached_tokens
        delta = choice.read(output.token_ids, output.logprobs, output.finish_reason)
        if choice.ended and output.finish_reason is None:  # a stop string: drop what the engine computes beyond it
            self._context.engine.finish(output.request_id, choice.num_tokens)
            self._outputs.forget(output.request_id)
        return delta

    def usage(self) -> dict[str, Any]:
        """In OpenAI's shape: the prompt counts once, however many answers; of it, what the prefix cache saved."""
        num_output_tokens = sum(choice.num_tokens for choice in self._choices.values())
        return {
            "prompt_tokens": self.num_prompt_tokens,
            "completion_tokens": num_output_tokens,
            "total_tokens": self.num_prompt_tokens + num_output_tokens,
            "prompt_tokens_details": {"cached_tokens": self._cached_tokens},
        }

    def client_left(self) -> None:
        """Cancel in the engine at once, in whatever state it is."""
        self._outputs.end("the client went away")

    def close(self) -> None:
        """Forget the outputs; cancels what has not ended."""
        self._context.output_router.close(self._outputs)


def _refusal(context: ServerContext, user: str, error: BaseException, count: int) -> BaseException:
    """The engine's refusal of ``count`` requests as an answer, their ends counted. The engine itself counts a full
    queue."""
    telemetry = context.engine.telemetry
    if isinstance(error, QueueFullError):
        wait = context.engine.estimated_wait()
        return unavailable(f"{error}; try again later", "queue_full", min(wait or 1.0, 30.0))
    if isinstance(error, EngineUnavailableError):
        telemetry.count_rejected(user, str(error), count)
        return unavailable(str(error), "engine_unavailable", 5)
    for _ in range(count):
        if isinstance(error, RequestTooLargeError):
            telemetry.count_too_long(user, str(error))
        else:
            telemetry.count_failed_before_queue()
    return invalid("messages", str(error), code=TOO_LONG) if isinstance(error, RequestTooLargeError) else error
