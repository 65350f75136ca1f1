"""Short bodies never wait for long ones, and what nobody wants any more does not start."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from slotdeck.engine.server.tokenizer_pool import LONG_BODY, TokenizerPool

SHORT, LONG = b"x" * LONG_BODY, b"x" * (LONG_BODY + 1)


class Gate:
    """Work that waits until it is opened."""

    def __init__(self) -> None:
        self.begun = 0
        self._begins = threading.Semaphore(0)
        self._open = threading.Event()

    def open(self) -> None:
        self._open.set()

    def work(self, body: bytes | bytearray) -> int:
        self.begun += 1
        self._begins.release()
        assert self._open.wait(20)
        return len(body)

    async def until_begun(self, number: int) -> None:
        """Wait until work has begun ``number`` more times."""
        for _ in range(number):
            assert await asyncio.to_thread(self._begins.acquire, timeout=20)


@pytest.fixture
async def pool() -> AsyncIterator[TokenizerPool]:
    pool = TokenizerPool()
    yield pool
    pool.close()


@pytest.fixture
async def gate() -> AsyncIterator[Gate]:
    gate = Gate()
    yield gate
    gate.open()


async def test_short_bodies_pass_a_long_one(pool: TokenizerPool, gate: Gate) -> None:
    long = asyncio.create_task(pool.run(gate.work, LONG))
    await gate.until_begun(1)
    assert await pool.run(len, SHORT) == LONG_BODY
    assert not long.done()
    gate.open()
    assert await long == LONG_BODY + 1


async def test_long_bodies_are_done_one_at_a_time_and_short_ones_two(pool: TokenizerPool, gate: Gate) -> None:
    long = [asyncio.create_task(pool.run(gate.work, LONG)) for _ in range(2)]
    short = [asyncio.create_task(pool.run(gate.work, SHORT)) for _ in range(3)]
    await gate.until_begun(3)
    assert gate.begun == 3
    gate.open()
    assert await asyncio.gather(*long, *short) == [LONG_BODY + 1] * 2 + [LONG_BODY] * 3


async def test_work_that_is_cancelled_before_it_begins_never_does(pool: TokenizerPool, gate: Gate) -> None:
    first = asyncio.create_task(pool.run(gate.work, LONG))
    await gate.until_begun(1)
    second = asyncio.create_task(pool.run(gate.work, LONG))
    await asyncio.sleep(0)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    gate.open()
    await first
    assert await pool.run(len, LONG) == LONG_BODY + 1, "the thread has come past the cancelled one"
    assert gate.begun == 1


async def test_closing_drops_what_waits(pool: TokenizerPool, gate: Gate) -> None:
    first = asyncio.create_task(pool.run(gate.work, LONG))
    await gate.until_begun(1)
    second = asyncio.create_task(pool.run(gate.work, LONG))
    await asyncio.sleep(0)
    pool.close()
    with pytest.raises(asyncio.CancelledError):
        await second
    gate.open()
    assert await first == LONG_BODY + 1
