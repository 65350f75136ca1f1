"""`python -m console.demo --socket PATH …`: what the Demo screen starts. Events as JSON lines on stdout.

It ends when stdin closes, so also when the console dies, and gives the settings back first.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import typer

from console.demo.command import (
    ALL_KINDS,
    ALL_MODES,
    ALL_USERS,
    KindsOption,
    ModesOption,
    SceneOption,
    SecondsOption,
    SeedOption,
    UsersOption,
)
from console.demo.perform import perform
from console.demo.rows import SECONDS
from console.demo.state import Event
from console.demo.wanted import Wanted, parse
from console.load.command import SocketOption
from engine.paths import default_socket


def main(
    *,
    socket: SocketOption = None,
    output: Path | None = None,
    users: UsersOption = ALL_USERS,
    kinds: KindsOption = ALL_KINDS,
    modes: ModesOption = ALL_MODES,
    seconds: SecondsOption = SECONDS,
    scene: SceneOption = None,
    seed: SeedOption = 1,
) -> None:
    """See the module."""
    wanted = parse(users, kinds, modes, seconds, scene or [])
    asyncio.run(_run(socket or default_socket(), wanted, output, seed))


async def _run(socket: Path, wanted: Wanted, output: Path | None, seed: int) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)

    async def until_closed() -> None:
        await reader.read()
        stop.set()

    watching = asyncio.create_task(until_closed())

    def tell(event: Event) -> None:
        try:
            print(json.dumps(event), flush=True)
        except BrokenPipeError:
            stop.set()

    await perform(socket, wanted, seed=seed, tell=tell, folder=output, stop=stop)
    watching.cancel()


if __name__ == "__main__":
    typer.run(main)
