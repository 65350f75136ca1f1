"""Runs simulated users against a target until the time is up, somebody stops it, or the server is gone."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import IO

from httpx import AsyncClient

from slotdeck.console.client.admin import AdminClient, AdminError, NoEngineError
from slotdeck.console.hosting.process import absence
from slotdeck.console.load import Kind
from slotdeck.console.load.client import Endpoint, RequestFailedError, UnreachableError, base_url, discover, make_client
from slotdeck.console.load.prompts import user_name
from slotdeck.console.load.tally import Tally
from slotdeck.console.load.users import SimulatedUser

GIVE_UP_SECONDS = 30.0
"""If a server cannot be reached for this long, the load ends."""
UNSPECIFIED = {"//0.0.0.0:": "//127.0.0.1:", "//[::]:": "//[::1]:"}


SIMULATED = "~"
"""Prefix of the names of simulated users, which distinguishes them from people with keys."""


def claim_names(socket: Path, count: int) -> tuple[list[str], IO[bytes]]:
    """Claim ``count`` names that no other load uses on this engine. The claim holds while the returned file is open.

    A new guest key replaces the earlier one of the same label, so two loads must not share a name. The process that
    uses name i locks byte i of the file. The system unlocks it when the process ends, however it ends.
    """
    socket.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    claim = socket.with_name(socket.name + ".guests").open("ab")
    names: list[str] = []
    index = 0
    while len(names) < count:
        try:
            fcntl.lockf(claim, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, index)
            names.append(SIMULATED + user_name(index))
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise
        index += 1
    return names, claim


class Target:
    """The server of the users: a URL with one key for all, or one's own engine, which gives each user a key."""

    def __init__(self, *, url: str | None, api_key: str | None, model: str | None, socket: Path | None) -> None:
        if (url is None) == (socket is None):
            raise ValueError("a target is either a URL or an admin socket")
        self._url = None if url is None else base_url(url)
        self._api_key = api_key
        self._model = model
        self._socket = socket
        self._claim: IO[bytes] | None = None

    @property
    def own(self) -> bool:
        """True for one's own engine."""
        return self._socket is not None

    def names(self, count: int) -> list[str]:
        """Names for ``count`` users."""
        if self._socket is None:
            return [user_name(index) for index in range(count)]
        names, self._claim = claim_names(self._socket, count)
        return names

    async def endpoints(self, names: list[str]) -> list[Endpoint]:
        """One endpoint per name. Raises RequestFailedError, or UnreachableError when nothing answers."""
        if self._socket is None:
            assert self._url is not None
            return [await self._discover(self._url, self._api_key)] * len(names)
        url, keys = await self._guests(self._socket, names)
        found = await self._discover(url, keys[names[0]])
        return [replace(found, api_key=keys[name]) for name in names]

    async def _discover(self, url: str, api_key: str | None) -> Endpoint:
        async with make_client(url, 1) as client:
            return await discover(client, url, api_key, self._model)

    async def _guests(self, socket: Path, names: list[str]) -> tuple[str, dict[str, str]]:
        admin = AdminClient(socket)
        try:
            frame = await asyncio.to_thread(admin.frame)
            minted = await asyncio.to_thread(admin.call, "POST", "/admin/guest-keys", {"labels": names})
            keys: dict[str, str] = minted["keys"]
        except NoEngineError as error:
            raise UnreachableError("connection", absence(socket)) from error
        except AdminError as error:
            raise RequestFailedError("admin", str(error)) from error
        url = frame.engine.url or ""
        for unspecified, loopback in UNSPECIFIED.items():
            url = url.replace(unspecified, loopback)
        return url.rstrip("/"), keys


async def run_traffic(
    target: Target,
    *,
    users: int,
    kind: Kind,
    seed: int,
    duration: float | None,
    on_tick: Callable[[Tally], None],
    tick: float = 1.0,
    parent: int | None = None,
) -> Tally:
    """Let ``users`` talk for ``duration`` seconds (``None``: until SIGINT, SIGTERM or SIGHUP) and return the counts.

    ``on_tick`` is called every ``tick`` seconds. ``parent`` is the pid of the parent process: the load ends
    when that process has died. A server that is out of reach for :data:`GIVE_UP_SECONDS` ends it too, and sets ``gone``
    in the counts. Raises RequestFailedError if the server refuses at the start.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    caught = [number for number in signals if signal.getsignal(number) is not signal.SIG_IGN]  # nohup ignores one
    for number in caught:
        loop.add_signal_handler(number, stop.set)
    tally = Tally(users)
    tasks: list[asyncio.Task[None]] = []
    try:
        names = target.names(users)
        endpoints = await target.endpoints(names)
        tally.started = time.monotonic()
        async with make_client(endpoints[0].url, users) as client:
            tasks = [
                asyncio.create_task(
                    _user(client, endpoint, tally, target, name=name, kind=kind, seed=seed).run(), name=name
                )
                for name, endpoint in zip(names, endpoints, strict=True)
            ]
            try:
                while not stop.is_set() and parent in (None, os.getppid()):
                    _raise_faults(tasks)
                    tally.gone = _out_of_reach(tally) > GIVE_UP_SECONDS
                    if tally.gone:
                        break
                    left = tick if duration is None else min(tick, tally.started + duration - time.monotonic())
                    if left <= 0:
                        break
                    try:
                        await asyncio.wait_for(stop.wait(), left)
                    except TimeoutError:
                        on_tick(tally)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
    finally:
        for number in caught:
            loop.remove_signal_handler(number)
    return tally


def _user(
    client: AsyncClient, endpoint: Endpoint, tally: Tally, target: Target, *, name: str, kind: Kind, seed: int
) -> SimulatedUser:
    async def renew() -> Endpoint:
        # Minting one label again replaces that label's key alone, so users renew independently of each other.
        [fresh] = await target.endpoints([name])
        return fresh

    return SimulatedUser(client, endpoint, tally, kind=kind, seed=f"{seed}/{name}", renew=renew)


def _out_of_reach(tally: Tally) -> float:
    """Seconds since the server last answered, 0 while it does."""
    return 0.0 if tally.unreachable_since is None else time.monotonic() - tally.unreachable_since


def _raise_faults(tasks: list[asyncio.Task[None]]) -> None:
    """A user never ends by itself: whatever ended it is a fault of Slotdeck and must be seen."""
    for task in tasks:
        if task.done():
            task.result()
