"""Errors in OpenAI's shape: ``{"error": {"message", "type", "param", "code"}}``.

A message names the field at fault and what is allowed. It does not repeat text that a client sent.
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
"""Tells OpenAI's client libraries not to send the same request again."""

QUEUE_FULL = "queue_full"
"""Error code: there is no place in the queue."""
TOO_MANY_BODIES = "too_many_bodies"
"""Error code: too many bytes of request bodies are in progress."""
TOO_LONG = "context_length_exceeded"
"""Error code: the prompt leaves no room for an answer in the context."""


class ApiError(Exception):
    """An answer other than 2xx. With a ``status`` of 4xx the client can fix it, with 503 it may try again later."""

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
        """The message for the event log. It holds no text that the client sent."""

    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        return JSONResponse(self.body(), status_code=self.status, headers=self.headers)


def invalid(param: str | None, message: str, code: str | None = None, logged: str | None = None) -> ApiError:
    """400: ``param`` is wrong. ``logged`` is the message for the log if ``message`` quotes the client."""
    return ApiError(400, message, param=param, code=code, logged=logged)


def unsupported(param: str, hint: str = "") -> ApiError:
    """400: this server cannot do what this field asks for."""
    return invalid(param, f"'{param}' is not supported{hint}", code="unsupported_parameter")


def unavailable(message: str, code: str, wait: float | None) -> ApiError:
    """503 with a Retry-After. ``wait``: seconds after which there will likely be room, None if unknown."""
    seconds = retry_after(wait, random.randint(0, MAX_RETRY_JITTER))
    return ApiError(503, message, type="server_error", code=code, headers={"retry-after": str(seconds)})


def failed(message: str, code: str = "engine_error") -> ApiError:
    """500: a fault of this server ended an accepted request."""
    return ApiError(500, message, type="server_error", code=code)


def log_unexpected(error: BaseException) -> ApiError:
    """Log an unexpected exception by type and place. Its message is left out, since it may hold a prompt.

    Returns the 500 to answer with.
    """
    identity = uuid.uuid4().hex[:12]
    place = "".join(traceback.format_tb(error.__traceback__))
    log.error("error %s: %s\n%s", identity, type(error).__name__, place)
    return failed(f"unexpected error {identity}; see the log of the server", code="internal_error")


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
    """Make ``app`` answer every error in this shape."""
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _unexpected)
