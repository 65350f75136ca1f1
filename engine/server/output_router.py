"""From the loop's thread to asyncio: one hop per step, then one bounded buffer per client's call."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from slotdeck.engine.loop.outputs import Output

MAX_PENDING = 4096
"""Outputs kept for a client that reads slowly, beyond what the socket buffers hold."""


class OutputStream:
    """Outputs of the requests behind one client's call, awaited by its handler. Lives on the asyncio loop."""

    def __init__(self, request_ids: Sequence[str], cancel: Callable[[str], object], max_pending: int) -> None:
        self.request_ids = tuple(request_ids)
        self._alive = dict.fromkeys(request_ids)
        self._cancel = cancel
        self._max_pending = max_pending * len(self.request_ids)
        self._pending: list[Output] = []
        self._waiter: asyncio.Future[None] | None = None
        self._waiting_since = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def put(self, output: Output) -> None:
        if output.request_id not in self._alive:
            return
        ends = output.finish_reason is not None or output.error is not None
        if len(self._pending) >= self._max_pending and not ends:
            self.end("the client reads too slowly: the answer was dropped")
            return
        self._pending.append(output)
        if ends:
            self.forget(output.request_id)
        self._wake()

    def forget(self, *request_ids: str) -> None:
        """The engine knows these no longer, or was told to end them: nothing more of them is wanted."""
        for request_id in request_ids:
            self._alive.pop(request_id, None)

    def end(self, error: str) -> None:
        """Cancel in the engine what has not ended and give the handler ``error`` after what is pending already."""
        alive = list(self._alive)
        self._alive.clear()
        for request_id in alive:
            self._pending.append(Output(request_id, [], time.monotonic(), error=error))
            self._wake()
            self._cancel(request_id)

    async def next(self, heartbeat: float | None) -> list[Output]:
        """All outputs pending, at least one; an empty list when none came within ``heartbeat`` seconds, which is the
        same in each call."""
        if not self._pending:
            loop = asyncio.get_running_loop()
            self._waiter, self._waiting_since = loop.create_future(), loop.time()
            if heartbeat is not None and self._timer is None:
                self._timer = loop.call_later(heartbeat, self._expire, heartbeat)
            try:
                await self._waiter
            finally:
                self._waiter = None
        outputs, self._pending = self._pending, []
        return outputs

    def close(self) -> None:
        """Nobody waits for outputs any more."""
        if self._timer is not None:
            self._timer.cancel()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _expire(self, heartbeat: float) -> None:
        """Ends a wait that lasts too long. One timer looks at all waits of the stream in turn: a timer for each wait,
        of which there is one per token, would cost more than the waiting."""
        loop = asyncio.get_running_loop()
        left = heartbeat if self._waiter is None else self._waiting_since + heartbeat - loop.time()
        if left <= 0:
            self._wake()
            left = heartbeat
        self._timer = loop.call_later(left, self._expire, heartbeat)


class OutputRouter:
    """``deliver`` is given to the engine at construction; the server attaches its loop when it starts."""

    def __init__(self, max_pending: int = MAX_PENDING) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._streams: dict[str, OutputStream] = {}
        self._max_pending = max_pending

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

    def open(self, request_ids: Sequence[str], cancel: Callable[[str], object]) -> OutputStream:
        """Begin to collect outputs of these requests into one stream; ``cancel`` ends one in the engine."""
        stream = OutputStream(request_ids, cancel, self._max_pending)
        self._streams |= dict.fromkeys(stream.request_ids, stream)
        return stream

    def close(self, stream: OutputStream) -> None:
        """Stop collecting; what has not ended is cancelled in the engine."""
        for request_id in stream.request_ids:
            self._streams.pop(request_id, None)
        stream.end("the client went away")
        stream.close()

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
