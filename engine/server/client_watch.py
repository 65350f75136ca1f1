"""Notices at once when a client closes its connection before it has its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

Result = TypeVar("Result")


class ClientDisconnectedError(Exception):
    """The client closed the connection before its body or its answer was complete."""


class ClientWatch:
    """Waits for the end of the connection in a task. Create it after the body has been read. It must be closed."""

    def __init__(self, receive: Receive) -> None:
        self._task = asyncio.create_task(self._wait(receive))

    @staticmethod
    async def _wait(receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    async def race(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Return the result of ``work``. If the client leaves first, cancel it and raise ClientDisconnectedError."""
        task = asyncio.create_task(work)
        try:
            await asyncio.wait({task, self._task}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not task.done():
                task.cancel()
        if task.cancelled() or not task.done():
            raise ClientDisconnectedError
        return task.result()

    def on_disconnect(self, call: Callable[[], object]) -> None:
        """Call ``call`` when the client leaves, unless the watch was closed before."""
        self._task.add_done_callback(lambda task: None if task.cancelled() else call())

    def close(self) -> None:
        self._task.cancel()
