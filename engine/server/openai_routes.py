"""``POST /v1/chat/completions`` and ``GET /v1/models``, as OpenAI's clients call them."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from slotdeck.engine.server.body import Body
from slotdeck.engine.server.context import ServerContext
from slotdeck.engine.server.errors import TOO_LONG, ApiError
from slotdeck.engine.server.generation import Generation, Prepared, prepare
from slotdeck.engine.server.streaming import ClientGoneError, ClientWatch, EventStream, complete

GET = ["GET", "HEAD"]


def openai_router(context: ServerContext) -> APIRouter:
    """The OpenAI routes over ``context``."""
    router = APIRouter()

    @router.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        arrival = time.monotonic()
        context.engine.telemetry.count_received()
        user = request.state.user
        watch = ClientWatch(request.receive)
        try:
            prepared = await _prepared(context, watch, request.state.body, user)
            generation = Generation(context, prepared, user, arrival)
        except ClientGoneError:
            watch.close()
            return Response()  # nobody reads it
        except BaseException:
            watch.close()
            raise
        watch.when_gone(generation.client_left)
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
            "context_length": context.engine.limits.context,
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


async def _prepared(context: ServerContext, watch: ClientWatch, body: Body, user: str) -> Prepared:
    """The prompt, tokenised off the loop; then ``body`` is released. Whatever ends the request here is counted."""
    telemetry = context.engine.telemetry
    try:
        return await watch.race(context.tokenizer_pool.run(partial(prepare, context), body.data))
    except ClientGoneError:
        telemetry.count_cancelled_before_queue()
        raise
    except ApiError as error:
        if error.code == TOO_LONG:
            telemetry.count_too_long(user, error.message)
        elif error.status < 500:
            telemetry.count_invalid(user, error.logged)
        else:
            telemetry.count_rejected(user, error.message)
        raise
    except BaseException:
        telemetry.count_failed_before_queue()
        raise
    finally:
        body.release()
