"""``/health``, ``/metrics`` and ``/slots``, for supervisors, Prometheus and scripts. They show no text of requests."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response

from slotdeck.engine.server.context import ServerContext
from slotdeck.engine.server.openai_routes import GET

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# Any client of the API can read this page, so it does not say whose request it is.
_PRIVATE = {"user", "request_id", "gaps"}


def status_router(context: ServerContext) -> APIRouter:
    """The routes that show the state of the engine."""
    router = APIRouter()

    @router.api_route("/health", methods=GET)
    async def health() -> Response:
        state, reason = context.engine.health()
        if state == "ok":
            return JSONResponse({"status": "ok"})
        return JSONResponse({"status": state, "reason": reason}, status_code=503)

    @router.api_route("/metrics", methods=GET)
    async def metrics() -> Response:
        page = await asyncio.to_thread(context.engine.metrics)
        return Response(page, headers={"content-type": METRICS_TYPE})

    @router.api_route("/slots", methods=GET)
    async def slots() -> Response:
        frame = context.engine.current_frame()
        return JSONResponse([slot.model_dump(exclude=_PRIVATE) for slot in frame.slots])

    return router
