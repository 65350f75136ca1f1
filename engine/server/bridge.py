"""From the loop's thread to asyncio: one hop per step, then one bounded buffer per request."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

from engine.loop import Output

MOST_PENDING = 4096
"""Outputs kept for a client that reads slowly, beyond what the socket buffers hold."""


class OutputStream:
    """Outputs of one request, awaited by its handler. Lives on the asyncio loop."""

    def __init__(self, request_id: str, cancel: Callable[[str], object], most_pending: int) -> None:
        self.request_id = request_id
        self._cancel = cancel
        self._most_pending = most_pending
        self._pending: deque[Output] = deque()
        self._ready = asyncio.Event()
        self.ended = False
        """True once the last output was put; the engine knows the request no longer, or was told to drop it."""

    def put(self, output: Output) -> None:
        if self.ended:
            return
        if len(self._pending) >= self._most_pending and output.finish_reason is None and output.error is None:
            self.end("the client reads too slowly: the answer was dropped")
            return
        self._pending.append(output)
        self.ended = output.finish_reason is not None or output.error is not None
        self._ready.set()

    def end(self, error: str) -> None:
        """Cancel the request in the engine and give its handler ``error`` after what is pending already."""
        if self.ended:
            return
        self.ended = True
        self._pending.append(Output(self.request_id, [], time.monotonic(), error=error))
        self._ready.set()
        self._cancel(self.request_id)

    async def next(self, patience: float | None) -> list[Output]:
        """All outputs pending, at least one; an empty list when none came within ``patience`` seconds."""
        if not self._pending:
            try:
                async with asyncio.timeout(patience):
                    await self._ready.wait()
            except TimeoutError:
                return []
        outputs = list(self._pending)
        self._pending.clear()
        self._ready.clear()
        return outputs


class Bridge:
    """``deliver`` is given to the engine at construction; the server attaches its loop when it starts."""

    def __init__(self, most_pending: int = MOST_PENDING) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._streams: dict[str, OutputStream] = {}
        self._most_pending = most_pending

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def deliver(self, outputs: list[Output]) -> None:
        """Called in any thread, once per step. Outputs of unknown requests are dropped."""
        if self._loop is None:
            return
        try:
            self._loop.call_soon_threadsafe(self._dispatch, outputs)
        except RuntimeError:  # the loop is closed: nobody is left to read
            self._loop = None

    def open(self, request_id: str, cancel: Callable[[str], object]) -> OutputStream:
        """Begin to collect outputs of ``request_id``; ``cancel`` ends it in the engine."""
        stream = OutputStream(request_id, cancel, self._most_pending)
        self._streams[request_id] = stream
        return stream

    def close(self, stream: OutputStream) -> None:
        """Stop collecting; a request that has not ended is cancelled in the engine."""
        if self._streams.pop(stream.request_id, None) is not None:
            stream.end("the client went away")

    def end_all(self, error: str) -> None:
        """Cancel every open request and give its client ``error``."""
        for stream in list(self._streams.values()):
            stream.end(error)

    @property
    def num_open(self) -> int:
        return len(self._streams)

    def _dispatch(self, outputs: list[Output]) -> None:
        for output in outputs:
            stream = self._streams.get(output.request_id)
            if stream is not None:
                stream.put(output)
