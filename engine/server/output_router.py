"""Brings outputs from the engine's thread to the asyncio loop, into one bounded buffer for each call."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from slotdeck.engine.loop.outputs import Output

MAX_PENDING = 4096
"""Outputs kept for each request of a client that reads slowly, beyond what the socket buffers hold."""


class OutputStream:
    """The outputs of one call's requests, which its handler awaits. Used on the asyncio loop only."""

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
        """Append an output, or end the stream if its buffer is full."""
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
        """Ignore further outputs of these requests, and do not cancel them in the engine."""
        for request_id in request_ids:
            self._alive.pop(request_id, None)

    def end(self, error: str) -> None:
        """Cancel in the engine what has not ended. The handler gets ``error`` after the pending outputs."""
        alive = list(self._alive)
        self._alive.clear()
        for request_id in alive:
            self._pending.append(Output(request_id, [], time.monotonic(), error=error))
            self._wake()
            self._cancel(request_id)

    async def next(self, heartbeat: float | None) -> list[Output]:
        """Wait for outputs. Returns all that are pending, or an empty list if none came within ``heartbeat`` seconds.

        Every call must pass the same ``heartbeat``.
        """
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
        """Stop the timer, since nobody waits any more."""
        if self._timer is not None:
            self._timer.cancel()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _expire(self, heartbeat: float) -> None:
        """End a wait that lasts too long. There is one wait per token, so a timer for each would be too expensive.
        Instead, one timer of the stream checks the current wait."""
        loop = asyncio.get_running_loop()
        left = heartbeat if self._waiter is None else self._waiting_since + heartbeat - loop.time()
        if left <= 0:
            self._wake()
            left = heartbeat
        self._timer = loop.call_later(left, self._expire, heartbeat)


class OutputRouter:
    """Hands the outputs of the engine to the streams of their calls.

    The engine is constructed with ``deliver``. The server calls ``attach`` with its asyncio loop when it starts.
    """

    def __init__(self, max_pending: int = MAX_PENDING) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._streams: dict[str, OutputStream] = {}
        self._max_pending = max_pending

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def deliver(self, outputs: list[Output]) -> None:
        """Take the outputs of one step, in any thread. Outputs of unknown requests are dropped."""
        if self._loop is None:
            return
        try:
            self._loop.call_soon_threadsafe(self._dispatch, outputs)
        except RuntimeError:  # the loop is closed, so nobody is left to read
            self._loop = None

    def open(self, request_ids: Sequence[str], cancel: Callable[[str], object]) -> OutputStream:
        """Collect the outputs of these requests in one stream. ``cancel`` cancels one of them in the engine."""
        stream = OutputStream(request_ids, cancel, self._max_pending)
        self._streams |= dict.fromkeys(stream.request_ids, stream)
        return stream

    def close(self, stream: OutputStream) -> None:
        """Stop collecting, and cancel in the engine what has not ended."""
        for request_id in stream.request_ids:
            self._streams.pop(request_id, None)
        stream.end("the client went away")
        stream.close()

    def end_all(self, error: str) -> None:
        """Cancel every open request and send its client ``error``."""
        for stream in list(self._streams.values()):
            stream.end(error)

    @property
    def num_open(self) -> int:
        """Number of requests whose streams are open."""
        return len(self._streams)

    def _dispatch(self, outputs: list[Output]) -> None:
        for output in outputs:
            stream = self._streams.get(output.request_id)
            if stream is not None:
                stream.put(output)
