"""A stand-in for `python -m slotdeck.engine`: admin socket, HTTP API and start-up behaviour, without a model.

As a program it obeys ``FAKE_ENGINE`` (see :func:`main`) and the ``SLOTDECK_*`` variables, as the engine does.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from slotdeck.engine.configuration import load_settings
from slotdeck.engine.paths import default_socket
from slotdeck.engine.settings import SETTINGS, StartSettings
from slotdeck.engine.telemetry.frame import (
    CounterInfo,
    EngineInfo,
    Frame,
    Health,
    HostInfo,
    LimitInfo,
    PoolInfo,
    WindowInfo,
)
from tests.support.fake_openai import FakeOpenAI, quiet_server, serving


class FakeEngine(FakeOpenAI):
    """The fake OpenAI server with an admin socket and guest keys."""

    def __init__(self, socket: Path, settings: StartSettings) -> None:
        super().__init__()
        self.socket = socket
        self.url: str | None = None
        self.boot_id = secrets.token_hex(4)
        self.started = time.monotonic()
        self.guests: dict[str, str] = {}
        self.most_guests = 256
        self.slots = settings.slots or 4
        self.slot_changes: list[int] = []
        self.settings = settings
        self.stop = asyncio.Event()
        self.health: Health = "ok"
        self.admin = Starlette(
            routes=[
                Route("/admin/frame", self._frame),
                Route("/admin/settings", self._settings),
                Route("/admin/settings", self._change, methods=["PATCH"]),
                Route("/admin/guest-keys", self._guest_keys, methods=["POST"]),
                Route("/admin/shutdown", self._shutdown, methods=["POST"]),
            ]
        )

    def _refused(self, request: Request) -> Response | None:
        key = (request.headers.get("Authorization") or "").removeprefix("Bearer ")
        if not key or key in self.guests.values():
            return None
        return JSONResponse({"error": {"message": "unknown API key"}}, 401)

    def frame(self) -> Frame:
        return Frame(
            boot_id=self.boot_id,
            sequence=1,
            time=time.time(),
            uptime=time.monotonic() - self.started,
            health=self.health,
            engine=EngineInfo(version="0", pid=os.getpid(), model="fake", url=self.url, threads=1),
            limits=LimitInfo(slots=self.slots, context=2048, queue=16, budget=64),
            pool=PoolInfo(total=8192),
            counters=CounterInfo(),
            minute=WindowInfo(seconds=60),
            ten_minutes=WindowInfo(seconds=600),
            host=HostInfo(),
        )

    async def _frame(self, _request: Request) -> Response:
        return Response(self.frame().model_dump_json(), media_type="application/json")

    async def _settings(self, _request: Request) -> Response:
        values = self.settings.model_dump(mode="json") | {"slots": self.slots, "api_key": None}
        rows = [{"name": name, "value": values[name], "live": setting.live} for name, setting in SETTINGS.items()]
        return JSONResponse({"revision": 0, "settings": rows})

    async def _change(self, request: Request) -> Response:
        self.slots = (await request.json())["changes"]["slots"]
        self.slot_changes.append(self.slots)
        return JSONResponse({"revision": 1, "slots": self.slots})

    async def _guest_keys(self, request: Request) -> Response:
        labels = (await request.json())["labels"]
        if len(self.guests.keys() | labels) > self.most_guests:
            return JSONResponse({"error": {"message": f"at most {self.most_guests} guest labels"}}, 422)
        minted: dict[str, Any] = {label: secrets.token_hex(8) for label in labels}
        self.guests |= minted
        return JSONResponse({"keys": minted})

    async def _shutdown(self, _request: Request) -> Response:
        self.stop.set()
        return JSONResponse({"stopping": True}, 202)


@asynccontextmanager
async def engine_on(socket: Path, settings: StartSettings | None = None) -> AsyncIterator[FakeEngine]:
    """A fake engine in this process behind ``socket``, with its API on a free loopback port."""
    engine = FakeEngine(socket, settings or StartSettings())
    async with serving(engine.app) as url:
        engine.url = url
        admin = quiet_server(uvicorn.Config(engine.admin, uds=str(socket), log_level="warning", lifespan="off"))
        task = asyncio.create_task(admin.serve())
        try:
            while not admin.started:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            yield engine
        finally:
            admin.should_exit = admin.force_exit = True
            await task
            socket.unlink(missing_ok=True)  # noqa: ASYNC240


async def _serve(socket: Path, settings: StartSettings, drained: Path | None) -> None:
    async with engine_on(socket, settings) as engine:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, engine.stop.set)
        print(f"slotdeck: serving on {engine.url}", flush=True)
        await engine.stop.wait()
        engine.health = "draining"
        while drained is not None and not drained.exists():  # noqa: ASYNC110, ASYNC240
            await asyncio.sleep(0.02)


def main(arguments: list[str]) -> None:
    """Behave as the variable ``FAKE_ENGINE`` says.

    Empty: serve. ``fail N``: print some lines and exit with N. ``wait``: never begin to serve. ``until FILE``: begin to
    serve when FILE exists. ``import FILE``: take the lock only when FILE exists. ``drain FILE``: after a
    SIGTERM, drain until FILE exists.
    """
    if arguments[0] == "model":
        print("model", *arguments[1:])
        sys.exit(7)
    settings = load_settings()
    socket = settings.socket or default_socket()
    print(f"slotdeck: fake engine {os.getpid()} slots {os.environ.get('SLOTDECK_SLOTS')}", flush=True)
    behaviour, _, value = os.environ.get("FAKE_ENGINE", "").partition(" ")
    while behaviour == "import" and not Path(value).exists():
        time.sleep(0.02)
    with socket.with_name(socket.name + ".lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("slotdeck: another engine runs", flush=True)
            sys.exit(3)
        lock.truncate(0)
        print(os.getpid(), file=lock, flush=True)
        print("slotdeck: loading [weights]", flush=True)
        if behaviour == "fail":
            print("Traceback of a failure\nslotdeck: port 8000 is in use", flush=True)
            sys.exit(int(value))
        if behaviour == "wait":
            signal.pause()
        while behaviour == "until" and not Path(value).exists():
            time.sleep(0.02)
        time.sleep(float(os.environ.get("FAKE_ENGINE_LOAD", "0.3")))
        asyncio.run(_serve(socket, settings, Path(value) if behaviour == "drain" else None))


if __name__ == "__main__":
    main(sys.argv[1:])
