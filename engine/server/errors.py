"""Errors in OpenAI's shape: ``{"error": {"message", "type", "param", "code"}}``.

Each names the field at fault and what is allowed; none repeats text that a client sent.
"""

from __future__ import annotations

import logging
import random
import traceback
import uuid
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from slotdeck.engine.telemetry.estimate import MAX_RETRY_JITTER, retry_after

log = logging.getLogger("slotdeck.server")

NO_RETRY = {"x-should-retry": "false"}
"""Tells OpenAI's clients not to send the same request again."""

QUEUE_FULL = "queue_full"
"""Code of the refusal of a request that finds no place in the queue."""
TOO_LONG = "context_length_exceeded"
"""Code of the refusal of a prompt that leaves no room in the context."""


class ApiError(Exception):
    """An answer other than 2xx. ``status`` 4xx: the client can fix it; 503: try again later."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
        logged: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type
        self.param = param
        self.code = code
        self.headers = headers or {}
        self.logged = logged or message
        """The message for the event log, without any text that the client sent."""

    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        return JSONResponse(self.body(), status_code=self.status, headers=self.headers)


def invalid(param: str | None, message: str, code: str | None = None, logged: str | None = None) -> ApiError:
    """400: the client sent something wrong in ``param``. ``logged``: what to log where ``message`` quotes it."""
    return ApiError(400, message, param=param, code=code, logged=logged)


def unsupported(param: str, hint: str = "") -> ApiError:
    """400: a field that would change the answer and that this server cannot honour."""
    return invalid(param, f"'{param}' is not supported{hint}", code="unsupported_parameter")


def unavailable(message: str, code: str, wait: float | None) -> ApiError:
    """503 with a Retry-After. ``wait``: seconds after which there will likely be room, None if unknown."""
    seconds = retry_after(wait, random.randint(0, MAX_RETRY_JITTER))
    return ApiError(503, message, type="server_error", code=code, headers={"retry-after": str(seconds)})


def failed(message: str, code: str = "engine_error") -> ApiError:
    """500: an accepted request ended by a fault of ours."""
    return ApiError(500, message, type="server_error", code=code)


def log_unexpected(error: BaseException) -> ApiError:
    """Log an unforeseen exception by type and place, never by its message, which may hold a prompt. Gives the 500."""
    identity = uuid.uuid4().hex[:12]
    place = "".join(traceback.format_tb(error.__traceback__))
    log.error("error %s: %s\n%s", identity, type(error).__name__, place)
    return failed(f"unexpected error {identity}; the server's log says where", code="internal_error")


async def _api_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error.response()


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = dict(error.headers or {})
    if error.status_code == 405 and request.method == "OPTIONS":
        return Response(status_code=204, headers=headers)
    if error.status_code == 404:
        message = f"there is no {request.method} {request.url.path[:200]}"
        return ApiError(404, message, code="unknown_url", headers=headers).response()
    if error.status_code == 405:
        allowed = headers.get("allow", headers.get("Allow", ""))
        message = f"{request.method} is not allowed here" + (f"; allowed: {allowed}" if allowed else "")
        return ApiError(405, message, code="method_not_allowed", headers=headers).response()
    return ApiError(error.status_code, str(error.detail), headers=headers).response()


async def _unexpected(_: Request, error: Exception) -> Response:
    return log_unexpected(error).response()


def install(app: FastAPI) -> None:
    """Answer every error of ``app`` in this shape."""
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _unexpected)
