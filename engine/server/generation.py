"""A call that the engine has accepted. Turns its outputs into text."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from slotdeck.engine.core.request import Request, Timeline
from slotdeck.engine.loop.outputs import Output
from slotdeck.engine.server.accounting import ReceivedCall
from slotdeck.engine.server.choice import Choice, Delta
from slotdeck.engine.server.context import ServerContext
from slotdeck.engine.server.errors import NO_RETRY, ApiError, failed, unavailable
from slotdeck.engine.server.prepare import Prepared, prompt_too_long


class Generation:
    """One request to the engine for each choice, and one stream of the deltas of all.

    ``close`` must be called. It cancels whatever has not ended.
    """

    def __init__(
        self, context: ServerContext, call: ReceivedCall, prepared: Prepared, user: str, arrival: float
    ) -> None:
        """Submit to the engine. ``arrival``: monotonic seconds. Raises ApiError as ``EngineClient.submit`` does."""
        self._engine = context.engine
        self.id = f"chatcmpl-{uuid.uuid4().hex}"
        self.created = int(time.time())
        self.chat = prepared.chat
        self.num_prompt_tokens = len(prepared.token_ids)
        self._cached_tokens = 0
        requests = self._requests(context, prepared, user, Timeline(arrival=arrival, queued=time.monotonic()))
        stop_token_ids = self.chat.sampling.stop_tokens(context.end_token_ids)
        self._choices = {
            request.id: Choice(index, context.text, self.chat.stops, self.chat.sampling.min_tokens, stop_token_ids)
            for index, request in enumerate(requests)
        }
        self._outputs = self._engine.submit(call, requests)

    def _requests(self, context: ServerContext, prepared: Prepared, user: str, timeline: Timeline) -> list[Request]:
        limit = self._engine.max_request_tokens
        max_output_tokens = limit - self.num_prompt_tokens
        if max_output_tokens < 1:  # the context was lowered after the prompt was checked
            raise prompt_too_long(str(self.num_prompt_tokens), limit)
        return [
            Request(
                id=f"{self.id}-{index}" if index else self.id,
                user=user,
                token_ids=list(prepared.token_ids),
                sampling=self.chat.sampling.params(max_output_tokens, context.end_token_ids, index),
                timeline=replace(timeline),
                block_hashes=list(prepared.block_hashes),
            )
            for index in range(self.chat.n)
        ]

    async def deltas(self, heartbeat: float | None) -> AsyncIterator[Delta | None]:
        """Yield text as it comes. The last delta of each choice has a finish reason.

        Yields None after ``heartbeat`` seconds of silence. Raises ApiError if a request failed or was cancelled, or if
        the client has left.
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
        if choice.ended and output.finish_reason is None:  # a stop string matched: the engine need not go on
            self._engine.finish(output.request_id, choice.num_tokens)
            self._outputs.forget(output.request_id)
        return delta

    def usage(self) -> dict[str, Any]:
        """Token counts in OpenAI's shape. The prompt counts once, however many choices there are.

        ``cached_tokens`` is the part of the prompt that the prefix cache held.
        """
        num_output_tokens = sum(choice.num_tokens for choice in self._choices.values())
        return {
            "prompt_tokens": self.num_prompt_tokens,
            "completion_tokens": num_output_tokens,
            "total_tokens": self.num_prompt_tokens + num_output_tokens,
            "prompt_tokens_details": {"cached_tokens": self._cached_tokens},
        }

    def on_disconnect(self) -> None:
        """The client has left: cancel all requests in the engine, whatever their state."""
        self._outputs.end("the client went away")

    def close(self) -> None:
        """Take no more outputs, and cancel what has not ended."""
        self._engine.close(self._outputs)
