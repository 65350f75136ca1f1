"""The admin API: frames, live settings, requests. Served only on the unix socket, which has mode 0600."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from slotdeck.engine.loop.engine_loop import CHANGE_TIMEOUT
from slotdeck.engine.loop.live_changes import RevisionConflictError
from slotdeck.engine.server.chat_request import read_json
from slotdeck.engine.server.client_watch import ClientWatch
from slotdeck.engine.server.context import ServerContext
from slotdeck.engine.server.errors import ApiError
from slotdeck.engine.settings import SETTINGS, SettingsError
from slotdeck.engine.telemetry.frame import Frame

MIN_RATE, MAX_RATE = 0.2, 10.0
MAX_LABELS = 256
MAX_LABEL = 64
MAX_SOURCE = 64
_SECRET = {"api_key"}


def admin_router(context: ServerContext) -> APIRouter:
    """The routes of the admin API."""
    router = APIRouter(prefix="/admin")
    engine = context.engine

    @router.get("/stream")
    async def stream(request: Request) -> Response:
        rate = _read_rate(request.query_params.get("rate", "4"))
        cursor = _read_cursor(context, request)
        return StreamingResponse(_frames(context, rate, cursor), media_type="application/x-ndjson")

    @router.get("/frame")
    async def frame() -> Response:
        return Response(engine.current_frame().model_dump_json(), media_type="application/json")

    @router.get("/profile")
    async def profile() -> Response:
        return Response(engine.profile().model_dump_json(), media_type="application/json")

    @router.get("/past")
    async def past() -> Response:
        return Response(context.recent_frames.lines(), media_type="application/x-ndjson")

    @router.get("/steps")
    async def steps(request: Request) -> Response:
        after = request.query_params.get("after", "0")
        if not after.isascii() or not after.isdecimal():
            raise _refused("after", "'after' must be a cursor from an earlier answer")
        measured, cursor = engine.steps(int(after[:18]))
        return JSONResponse({"cursor": cursor, "steps": measured})

    @router.get("/settings")
    async def settings() -> Response:
        return JSONResponse(_settings_document(context))

    @router.patch("/settings")
    async def change(request: Request) -> Response:
        document = read_json(request.state.body.data)
        changes, revision, source = _read_change(document)
        watch = ClientWatch(request.receive)
        pending = engine.begin_change(changes, revision=revision, source=source)
        watch.on_disconnect(pending.withdraw)  # what its caller gave up must not apply later
        try:
            # In a thread, since a change of the pool size takes a while.
            limits = await asyncio.to_thread(pending.wait, CHANGE_TIMEOUT)
        except RevisionConflictError as error:
            raise ApiError(409, str(error), param="revision", code="revision_conflict") from error
        except SettingsError as error:
            param = next(iter(changes)) if len(changes) == 1 else None
            raise ApiError(422, str(error), param=param, code="setting_refused") from error
        finally:
            watch.close()
        return JSONResponse(limits.model_dump())

    @router.get("/requests/{request_id}")
    async def request_detail(request_id: str) -> Response:
        # In a thread, since a long answer has thousands of gaps to explain.
        detail = await asyncio.to_thread(engine.find_request, request_id)
        if detail is None:
            raise ApiError(
                404, "no request with that id runs, waits or has ended recently", param="id", code="request_not_found"
            )
        return Response(detail.model_dump_json(), media_type="application/json")

    @router.post("/requests/{request_id}/cancel")
    async def cancel(request_id: str) -> Response:
        if not engine.cancel(request_id):
            raise ApiError(404, "this request has already ended", param="id", code="request_not_found")
        return JSONResponse({"cancelled": True})

    @router.post("/guest-keys")
    async def guest_keys(request: Request) -> Response:
        labels = read_json(request.state.body.data).get("labels")
        try:
            return JSONResponse({"keys": context.keys.mint(_read_labels(labels))})
        except ValueError as error:
            raise _refused("labels", str(error)) from error

    @router.post("/shutdown")
    async def shutdown(request: Request) -> Response:
        body = request.state.body.data
        force = read_json(body).get("force", False) if body else False
        if not isinstance(force, bool):
            raise _refused("force", "'force' must be true or false")
        context.request_stop(force=force)
        return JSONResponse({"stopping": True, "force": force}, status_code=202)

    return router


async def _frames(context: ServerContext, rate: float, cursor: int) -> AsyncIterator[bytes]:
    """Yield frames as lines until the client leaves, which cancels this iterator, or the engine stops.

    The first frame comes at once and has the events after ``cursor``. The last one has the events up to the end.
    """
    sequence = 0
    while True:
        last = context.stopping.is_set()
        sequence += 1
        frame, cursor = context.engine.frame(sequence, cursor)
        yield _line(frame.model_copy(update={"event_cursor": cursor}))
        if last:
            return
        try:
            async with asyncio.timeout(1 / rate):
                await context.stopping.wait()
        except TimeoutError:
            pass


def _line(frame: Frame) -> bytes:
    return frame.model_dump_json().encode() + b"\n"


def _refused(param: str, message: str) -> ApiError:
    return ApiError(422, message, param=param, code="invalid_value")


def _read_rate(value: str) -> float:
    try:
        rate = float(value)
    except ValueError:
        rate = 0.0
    if not MIN_RATE <= rate <= MAX_RATE:
        raise _refused("rate", f"'rate' must be between {MIN_RATE} and {MAX_RATE} frames per second")
    return rate


def _read_cursor(context: ServerContext, request: Request) -> int:
    """The event after which a stream begins: the N of ``events_after=N``, or the newest one.

    An N from another boot of the engine means nothing here, so such a stream begins with the newest event too.
    """
    now = context.engine.event_cursor
    wanted = request.query_params.get("events_after")
    if wanted is None:
        return now
    if not wanted.isascii() or not wanted.isdecimal():
        raise _refused("events_after", "'events_after' must be the event_cursor of a frame")
    same_boot = request.query_params.get("boot_id") == context.engine.boot_id
    return min(int(wanted[:18]), now) if same_boot else now


def _settings_document(context: ServerContext) -> dict[str, Any]:
    current = context.engine.current_frame()
    limits, bounds = current.limits, current.limits.bounds
    values = context.settings.model_dump(mode="json") | limits.model_dump(exclude={"revision"})
    values["mode"] = limits.next_mode or limits.mode
    rows = [
        {
            "name": setting.name,
            "value": values[setting.name] if setting.name not in _SECRET else None,
            "unit": setting.unit,
            "live": setting.live,
            "minimum": bounds[setting.name].least if setting.name in bounds else setting.minimum,
            "maximum": bounds[setting.name].most if setting.name in bounds else setting.maximum,
            "help": setting.help,
        }
        for setting in SETTINGS.values()
    ]
    return {"revision": current.limits.revision, "settings": rows}


def _read_change(document: dict[str, Any]) -> tuple[dict[str, Any], int | None, str]:
    changes, revision = document.get("changes"), document.get("revision")
    source = document.get("source", "admin")
    if not isinstance(changes, dict) or not changes:
        raise _refused("changes", "'changes' must be an object of setting names and values")
    for name, value in changes.items():
        if type(value) not in (int, bool, str):
            label = name[:MAX_LABEL]
            raise _refused(label, f"{label} must be a whole number, a word, or true or false")
    if revision is not None and type(revision) is not int:
        raise _refused("revision", "'revision' must be a whole number or absent")
    if not _is_label(source):
        raise _refused("source", f"'source' must have 1 to {MAX_SOURCE} printable characters")
    return changes, revision, source


def _read_labels(value: Any) -> list[str]:
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_LABELS or not all(map(_is_label, value)):
        raise _refused(
            "labels",
            f"'labels' must be a list of 1 to {MAX_LABELS} names of 1 to {MAX_LABEL} printable characters",
        )
    return value


def _is_label(value: Any) -> bool:
    return isinstance(value, str) and 1 <= len(value) <= MAX_LABEL and value.isprintable()
