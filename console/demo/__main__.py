"""`python -m slotdeck.console.demo SOCKET FOLDER WANTED`: what the Demo screen starts. Events as JSON lines on stdout.

FOLDER is for the reports and the recording, WANTED a :class:`Wanted` as JSON. It ends when stdin closes, so also when
the console dies, and gives the settings back first.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from pydantic import TypeAdapter

from slotdeck.console.demo.perform import perform
from slotdeck.console.demo.rows import SEED
from slotdeck.console.demo.state import Event
from slotdeck.console.demo.wanted import Wanted


async def demo(socket: Path, folder: Path, wanted: Wanted) -> None:
    """See the module."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)

    async def until_closed() -> None:
        await reader.read()
        stop.set()

    watching = asyncio.create_task(until_closed())

    def on_event(event: Event) -> None:
        try:
            print(json.dumps(event), flush=True)
        except BrokenPipeError:
            stop.set()

    await perform(socket, wanted, seed=SEED, on_event=on_event, folder=folder, stop=stop)
    watching.cancel()


if __name__ == "__main__":
    asyncio.run(demo(Path(sys.argv[1]), Path(sys.argv[2]), TypeAdapter(Wanted).validate_json(sys.argv[3])))
