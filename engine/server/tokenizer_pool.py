"""Reading, validating, rendering and tokenising bodies, off the event loop.

Short and long bodies have threads of their own, so that megabytes of text delay neither running streams nor the
short prompts of others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from slotdeck.engine.server.errors import unavailable

LONG_BODY = 64 << 10
"""Bytes from which a body takes the long lane."""

Result = TypeVar("Result")


class TokenizerPool:
    """Two lanes of threads. ``max_bytes`` bounds the bodies that are held at a time; more are refused with 503."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._held = 0
        self._short = ThreadPoolExecutor(2, thread_name_prefix="tokenizer-short")
        self._long = ThreadPoolExecutor(1, thread_name_prefix="tokenizer-long")

    async def run(self, work: Callable[[bytes], Result], body: bytes) -> Result:
        """``work(body)`` in a thread. Cancelling gives it up: it does not start, or its result is dropped."""
        if self._held and self._held + len(body) > self._max_bytes:
            raise unavailable("too many long prompts are being read at once", "queue_full", 2)
        lane = self._long if len(body) > LONG_BODY else self._short
        self._held += len(body)
        future = asyncio.get_running_loop().run_in_executor(lane, work, body)
        try:
            return await future
        finally:
            self._held -= len(body)

    def close(self) -> None:
        """Drop what has not started; what runs ends by itself."""
        for lane in (self._short, self._long):
            lane.shutdown(wait=False, cancel_futures=True)
