"""Runs both applications on one asyncio loop until a signal or the admin stops them, then drains."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp

from slotdeck.engine.loop.engine_loop import EngineLoop
from slotdeck.engine.server.app import create_admin_app, create_app
from slotdeck.engine.server.connections import Connections
from slotdeck.engine.server.context import ServedModel, ServerContext
from slotdeck.engine.server.engine_client import EngineClient
from slotdeck.engine.server.http_limits import MAX_ADMIN_CONNECTIONS, HttpLimits, limits_of_this_process
from slotdeck.engine.server.keys import KeyRing, load_api_keys
from slotdeck.engine.server.listeners import Listeners
from slotdeck.engine.server.output_router import OutputRouter
from slotdeck.engine.server.tokenizer_pool import TokenizerPool
from slotdeck.engine.settings import StartSettings
from slotdeck.engine.telemetry.history.recorder import Recorder
from slotdeck.engine.text.tokenizer import TextModel

log = logging.getLogger("slotdeck.server")

CLOSING_SECONDS = 2
"""After everything else has ended, the time for complete answers to reach slow clients."""
POLL_SECONDS = 0.05


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do nothing: ``serve`` handles signals for both servers."""
        yield


async def serve(
    engine: EngineLoop,
    output_router: OutputRouter,
    *,
    text: TextModel,
    model: ServedModel,
    settings: StartSettings,
    listeners: Listeners,
    on_ready: Callable[[str], None],
    recorder: Recorder | None = None,
    http_limits: HttpLimits | None = None,
) -> int:
    """Serve until SIGTERM, SIGINT or ``POST /admin/shutdown``. Returns the exit code of the process, 0.

    ``engine`` must be running and deliver to ``output_router``. The caller stops it afterwards and closes
    ``listeners``. ``on_ready`` is called with the URL of the API once both sockets answer. The first signal drains: new
    and waiting requests are refused, and running ones may finish within ``drain_timeout``. The second signal does not
    wait for them. Signals are handled only if this runs in the main thread. ``recorder`` runs until the last request
    has ended. ``http_limits`` default to what ``settings`` and this process allow.
    """
    context = ServerContext(
        engine=EngineClient(engine, output_router),
        text=text,
        model=model,
        settings=settings,
        keys=KeyRing(load_api_keys(settings)),
        tokenizer_pool=TokenizerPool(),
    )
    output_router.attach(asyncio.get_running_loop())
    limits = http_limits or limits_of_this_process(settings.max_body)
    admin_limits = replace(limits, max_connections=MAX_ADMIN_CONNECTIONS)
    connections = [Connections(limits), Connections(admin_limits)]
    apps = [create_app(context, limits), create_admin_app(context, admin_limits)]
    servers = [_server(app, opened) for app, opened in zip(apps, connections, strict=True)]
    sockets = [listeners.tcp, listeners.admin]
    tasks = [asyncio.create_task(_run(server, sock)) for server, sock in zip(servers, sockets, strict=True)]
    sweeps = [asyncio.create_task(opened.sweep()) for opened in connections]
    following = asyncio.create_task(context.recent_frames.follow(engine, context.stopping))
    recording = None if recorder is None else asyncio.create_task(recorder.run(context.stopping))
    try:
        with _handle_signals(context):
            while not all(server.started for server in servers):
                if failed := [task for task in tasks if task.done()]:
                    failed[0].result()
                    raise RuntimeError("a server ended before it was ready")
                await asyncio.sleep(0.01)
            log.info("serving %s on %s, admin socket %s", model.id, listeners.url, listeners.admin_path)
            on_ready(listeners.url)
            await context.stop_requested.wait()
            await _drain(context)
            context.stopping.set()
            for server in servers:
                server.should_exit = True
            await asyncio.gather(*tasks)
            if recording is not None:
                await asyncio.wait({recording}, timeout=CLOSING_SECONDS)
    finally:
        context.tokenizer_pool.close()
        for task in [*tasks, *sweeps, following, *([] if recording is None else [recording])]:
            task.cancel()
    log.info("stopped")
    return 0


async def _drain(context: ServerContext) -> None:
    """Refuse new requests, let running ones finish, and cancel those left after the timeout or a second signal."""
    engine = context.engine
    log.info("draining: %d requests in flight", engine.num_in_flight)
    engine.drain()
    deadline = asyncio.get_running_loop().time() + context.settings.drain_timeout
    while _is_serving(engine) and not context.force.is_set() and asyncio.get_running_loop().time() < deadline:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(POLL_SECONDS):
                await context.force.wait()
    if engine.num_in_flight:
        log.warning("cancelling %d requests that still run", engine.num_in_flight)
    engine.end_all("the server was stopped before the answer was complete")


def _is_serving(engine: EngineClient) -> bool:
    """Whether requests can still finish. A faulty engine finishes none."""
    return bool(engine.num_in_flight) and engine.health()[0] != "fault"


def _server(app: ASGIApp, connections: Connections) -> _Server:
    config = uvicorn.Config(
        app,
        http=cast("Any", connections.protocol),
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="warning",  # each of the two servers would log its start and its end
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=math.ceil(connections.limits.keep_alive),
        backlog=connections.limits.backlog,
        timeout_graceful_shutdown=CLOSING_SECONDS,
    )
    return _Server(config)


async def _run(server: _Server, listener: socket.socket) -> None:
    await server.serve(sockets=[listener])


@contextlib.contextmanager
def _handle_signals(context: ServerContext) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    handled = (signal.SIGTERM, signal.SIGINT)
    for number in handled:
        loop.add_signal_handler(number, context.request_stop)
    try:
        yield
    finally:
        for number in handled:
            loop.remove_signal_handler(number)
