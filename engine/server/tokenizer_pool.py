"""Reading, validating, rendering and tokenising bodies, off the event loop.

Short and long bodies have threads of their own, so that megabytes of text delay neither running streams nor the
short prompts of others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

LONG_BODY = 64 << 10
"""Bytes from which a body takes the long lane."""

Result = TypeVar("Result")


class TokenizerPool:
    """Two lanes of threads. What may wait for them was bounded when it was read (``BodyMemory``)."""

    def __init__(self) -> None:
        self._short = ThreadPoolExecutor(2, thread_name_prefix="tokenizer-short")
        self._long = ThreadPoolExecutor(1, thread_name_prefix="tokenizer-long")

    async def run(self, work: Callable[[bytes | bytearray], Result], body: bytes | bytearray) -> Result:
        """``work(body)`` in a thread. Cancelling gives it up: it does not start, or its result is dropped."""
        lane = self._long if len(body) > LONG_BODY else self._short
        return await asyncio.get_running_loop().run_in_executor(lane, work, body)

    def close(self) -> None:
        """Drop what has not started; what runs ends by itself."""
        for lane in (self._short, self._long):
            lane.shutdown(wait=False, cancel_futures=True)
