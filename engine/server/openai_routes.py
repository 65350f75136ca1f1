"""``POST /v1/chat/completions`` and ``GET /v1/models``, compatible with OpenAI's clients."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from slotdeck.engine.server.body import Body
from slotdeck.engine.server.client_watch import ClientDisconnectedError, ClientWatch
from slotdeck.engine.server.completion import complete
from slotdeck.engine.server.context import ServerContext
from slotdeck.engine.server.errors import ApiError
from slotdeck.engine.server.event_stream import EventStream
from slotdeck.engine.server.generation import Generation
from slotdeck.engine.server.prepare import Prepared, prepare

GET = ["GET", "HEAD"]


def openai_router(context: ServerContext) -> APIRouter:
    """The routes of the OpenAI API."""
    router = APIRouter()

    @router.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        arrival = time.monotonic()
        user = request.state.user
        watch = ClientWatch(request.receive)
        try:
            with context.engine.receive(user) as call:
                prepared = await _prepare(context, watch, user, request.state.body)
                generation = Generation(context, call, prepared, user, arrival)
        except ClientDisconnectedError:
            watch.close()
            return Response()  # nobody will read it
        except BaseException:
            watch.close()
            raise
        watch.on_disconnect(generation.on_disconnect)
        if prepared.chat.stream:
            return EventStream(generation, watch, context.model.id, context.settings.heartbeat)
        try:
            return await complete(generation, context.model.id)
        finally:
            generation.close()
            watch.close()

    def model_card() -> dict[str, Any]:
        return {
            "id": context.model.id,
            "object": "model",
            "created": context.model.created,
            "owned_by": "slotdeck",
            "context_length": context.engine.context_length,
            "kv_pool_tokens": context.engine.pool_tokens,
        }

    @router.api_route("/v1/models", methods=GET)
    async def models() -> Response:
        return JSONResponse({"object": "list", "data": [model_card()]})

    @router.api_route("/v1/models/{model_id:path}", methods=GET)
    async def model(model_id: str) -> Response:
        if model_id != context.model.id:
            message = f"this server has no such model; it serves {context.model.id!r}"
            raise ApiError(404, message, param="model", code="model_not_found")
        return JSONResponse(model_card())

    return router


async def _prepare(context: ServerContext, watch: ClientWatch, user: str, body: Body) -> Prepared:
    """Tokenize the prompt in a thread, then release ``body``. Raises ClientDisconnectedError."""
    try:
        return await watch.race(context.tokenizer_pool.run(partial(prepare, context, user), body.data))
    finally:
        body.release()
