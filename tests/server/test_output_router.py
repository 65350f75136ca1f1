"""How outputs get from the engine to the handlers: order, bounds, ends and heartbeats."""

from __future__ import annotations

import asyncio
import threading

import pytest

from slotdeck.engine.loop.outputs import Output
from slotdeck.engine.server.output_router import OutputRouter


def token(request_id: str, number: int) -> Output:
    return Output(request_id, [number], float(number))


def end(request_id: str) -> Output:
    return Output(request_id, [], 9.0, finish_reason="stop")


@pytest.fixture
async def router() -> OutputRouter:
    router = OutputRouter(max_pending=3)
    router.attach(asyncio.get_running_loop())
    return router


async def delivered(router: OutputRouter, *outputs: Output) -> None:
    """Deliver from another thread, as the engine does. The outputs are dispatched when this returns."""
    thread = threading.Thread(target=router.deliver, args=(list(outputs),))
    thread.start()
    thread.join()
    await asyncio.sleep(0)


async def test_each_stream_gets_its_own_outputs_in_order(router: OutputRouter) -> None:
    cancelled: list[str] = []
    one, other = router.open(["a", "b"], cancelled.append), router.open(["c"], cancelled.append)
    await delivered(router, token("a", 1), token("c", 2), token("b", 3), token("unknown", 4))
    assert [output.request_id for output in await one.next(None)] == ["a", "b"]
    assert [output.request_id for output in await other.next(None)] == ["c"]
    await delivered(router, end("a"), token("a", 5), end("b"))
    assert [output.finish_reason for output in await one.next(None)] == ["stop", "stop"], "nothing after an end"
    router.close(one)
    assert cancelled == [], "both had ended"
    assert router.num_open == 1
    router.close(other)
    assert cancelled == ["c"]
    assert router.num_open == 0


@pytest.mark.parametrize("num_requests", [1, 2])
async def test_a_slow_reader_is_dropped_when_its_buffer_is_full(router: OutputRouter, num_requests: int) -> None:
    cancelled: list[str] = []
    ids = [f"r{number}" for number in range(num_requests)]
    stream = router.open(ids, cancelled.append)
    bound = 3 * num_requests
    await delivered(router, *[token("r0", number) for number in range(bound)])
    assert cancelled == []
    await delivered(router, token("r0", bound))
    assert cancelled == ids
    outputs = await stream.next(None)
    assert [output.error for output in outputs[:bound]] == [None] * bound, "earlier outputs are still delivered"
    assert [output.request_id for output in outputs[bound:]] == ids
    assert all("reads too slowly" in (output.error or "") for output in outputs[bound:])


async def test_the_end_of_a_request_fits_into_a_full_buffer(router: OutputRouter) -> None:
    cancelled: list[str] = []
    stream = router.open(["a"], cancelled.append)
    await delivered(router, *[token("a", number) for number in range(3)], end("a"))
    assert (await stream.next(None))[-1].finish_reason == "stop"
    assert cancelled == []


async def test_a_wait_ends_after_each_heartbeat_without_outputs(router: OutputRouter) -> None:
    stream = router.open(["a"], lambda _: None)
    assert await stream.next(0.02) == []
    assert await stream.next(0.02) == []
    await delivered(router, token("a", 1))
    assert [output.token_ids for output in await stream.next(0.02)] == [[1]]
    waiting = asyncio.create_task(stream.next(20))  # the timer of the first wait still runs
    await delivered(router, end("a"))
    assert [output.finish_reason for output in await waiting] == ["stop"]
    router.close(stream)


async def test_all_open_requests_end_with_the_given_error(router: OutputRouter) -> None:
    cancelled: list[str] = []
    streams = [router.open([name], cancelled.append) for name in ("a", "b")]
    await delivered(router, end("a"))
    router.end_all("the server was stopped")
    assert cancelled == ["b"]
    assert [output.error for output in await streams[0].next(None)] == [None]
    assert [output.error for output in await streams[1].next(None)] == ["the server was stopped"]


async def test_requests_that_the_engine_never_accepted_are_not_cancelled(router: OutputRouter) -> None:
    cancelled: list[str] = []
    stream = router.open(["a"], cancelled.append)
    stream.forget("a")
    router.close(stream)
    assert cancelled == []


def test_outputs_after_the_end_of_the_server_are_dropped() -> None:
    router = OutputRouter()
    router.deliver([token("a", 1)])  # before the server starts
    loop = asyncio.new_event_loop()
    router.attach(loop)
    loop.close()
    router.deliver([token("a", 2)])
    router.deliver([token("a", 3)])
