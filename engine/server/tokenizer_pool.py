"""Threads that validate and tokenize request bodies.

Short and long bodies have separate threads, so that megabytes of text delay neither running streams nor the short
prompts of other clients.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

LONG_BODY = 64 << 10
"""A body larger than this, in bytes, goes to the thread for long ones."""

Result = TypeVar("Result")


class TokenizerPool:
    """Two thread pools. ``BodyMemory`` has bounded what may wait for them."""

    def __init__(self) -> None:
        self._short = ThreadPoolExecutor(2, thread_name_prefix="tokenizer-short")
        self._long = ThreadPoolExecutor(1, thread_name_prefix="tokenizer-long")

    async def run(self, work: Callable[[bytes | bytearray], Result], body: bytes | bytearray) -> Result:
        """Run ``work(body)`` in a thread. If cancelled, it does not start, or its result is dropped."""
        lane = self._long if len(body) > LONG_BODY else self._short
        return await asyncio.get_running_loop().run_in_executor(lane, work, body)

    def close(self) -> None:
        """Drop what has not started. What runs ends by itself."""
        for lane in (self._short, self._long):
            lane.shutdown(wait=False, cancel_futures=True)
