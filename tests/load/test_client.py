"""Reading streams: what counts as text, what counts as an error, and when the clock starts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotdeck.console.load.client import (
    BusyError,
    Completion,
    Endpoint,
    RequestFailedError,
    UnreachableError,
    base_url,
    chat,
    discover,
    make_client,
)
from slotdeck.console.load.sse import EventParser
from tests.support.fake_openai import FakeOpenAI, Reply, busy, serving, until

QUESTION = [{"role": "user", "content": "hello"}]


@pytest.fixture
async def fake() -> AsyncIterator[FakeOpenAI]:
    server = FakeOpenAI()
    async with serving(server.app) as url:
        server.url = url  # type: ignore[attr-defined]
        yield server


async def ask(fake: FakeOpenAI) -> Completion:
    url = fake.url  # type: ignore[attr-defined]
    async with make_client(url, 1) as client:
        return await chat(client, Endpoint(url, "fake"), QUESTION, max_tokens=8, temperature=0)


STREAM = ': hello\r\n\r\ndata: {"a": "x\u2028y"}\r\n\r\nid: 7\ndata: one\ndata:two\n\ndata: [DONE]\n\n'.encode()


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_events_do_not_depend_on_how_bytes_arrive(cuts: list[int]) -> None:
    parser = EventParser()
    edges = [0, *sorted(cuts), len(STREAM)]
    events = [event for start, end in pairwise(edges) for event in parser.feed(STREAM[start:end])]
    assert events == ['{"a": "x\u2028y"}', "one\ntwo", "[DONE]"]


def test_an_endless_line_is_an_error_and_not_a_full_memory() -> None:
    parser = EventParser()
    with pytest.raises(ValueError, match="does not end"):
        parser.feed(b"x" * (5 << 20))


async def test_an_answer_is_text_usage_and_gaps_between_pieces(fake: FakeOpenAI) -> None:
    answer = await ask(fake)
    assert answer.text == "Hello there."
    assert (answer.prompt_tokens, answer.generated, answer.finish_reason) == (20, 3, "stop")
    assert len(answer.gaps) == 2
    assert fake.bodies[0]["stream_options"] == {"include_usage": True}


async def test_without_usage_pieces_are_counted(fake: FakeOpenAI) -> None:
    fake.script = lambda _n, _b: Reply(usage=False)
    answer = await ask(fake)
    assert answer.completion_tokens is None
    assert answer.generated == 3


async def test_txt_05_heartbeats_and_the_role_chunk_are_no_first_token(fake: FakeOpenAI) -> None:
    """Comments may arrive long before the first text; only the text counts."""
    release = asyncio.Event()
    fake.script = lambda _n, _b: Reply(hold=release, comments=3)
    seen: list[Completion] = []
    url = fake.url  # type: ignore[attr-defined]
    async with make_client(url, 1) as client:
        task = asyncio.create_task(
            chat(client, Endpoint(url, "fake"), QUESTION, max_tokens=8, temperature=0, on_text=seen.append)
        )
        await until(lambda: fake.open_streams == 1)
        assert seen == []
        before = asyncio.get_running_loop().time()
        release.set()
        answer = await task
    assert answer.first is not None
    assert answer.first >= before
    assert len(seen) == answer.chunks == 3


async def test_a_finish_reason_without_done_is_a_whole_answer(fake: FakeOpenAI) -> None:
    """Some servers close the stream without the last line that OpenAI sends."""
    choice = '{"choices": [{"delta": {"content": "hi"}, "finish_reason": "stop"}]}'
    fake.script = lambda _n, _b: Reply(raw=f"data: {choice}\n\n".encode())
    answer = await ask(fake)
    assert (answer.text, answer.finish_reason) == ("hi", "stop")


async def test_503_carries_retry_after(fake: FakeOpenAI) -> None:
    fake.script = lambda _n, _b: busy("3")
    with pytest.raises(BusyError) as caught:
        await ask(fake)
    assert caught.value.retry_after == 3


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (Reply(error_event="the engine failed"), "server"),
        (Reply(cut=True), "stream cut"),
        (Reply(raw=b"data: not json\n\n"), "protocol"),
        (Reply(raw=b"data: [1]\n\n"), "protocol"),
        (Reply(raw=b""), "stream cut"),
        (Reply(status=500, body="oops"), "http 500"),
        (Reply(status=400, body={"error": {"message": "too long", "code": "context_length_exceeded"}}), "http 400"),
    ],
)
async def test_every_broken_answer_is_a_named_error(fake: FakeOpenAI, reply: Reply, kind: str) -> None:
    fake.script = lambda _n, _b: reply
    with pytest.raises(RequestFailedError) as caught:
        await ask(fake)
    assert caught.value.kind == kind


async def test_a_server_that_is_not_there_is_unreachable() -> None:
    async with make_client("http://127.0.0.1:9", 1) as client:
        with pytest.raises(UnreachableError, match=r"no server answers at http://127\.0\.0\.1:9"):
            await discover(client, "http://127.0.0.1:9", None, None)


async def test_the_model_and_its_context_come_from_the_server(fake: FakeOpenAI) -> None:
    url = fake.url  # type: ignore[attr-defined]
    async with httpx.AsyncClient() as client:
        assert await discover(client, url, None, None) == Endpoint(url, "fake", None, 2048)
        with pytest.raises(RequestFailedError, match="serves fake, but not other"):
            await discover(client, url, None, "other")
        fake.key = "secret"
        with pytest.raises(RequestFailedError, match="--api-key"):
            await discover(client, url, None, None)
        assert (await discover(client, url, "secret", None)).model == "fake"


@pytest.mark.parametrize(
    "url", ["nas:8000", "http://nas:8000", "http://nas:8000/", "http://nas:8000/v1", "nas:8000/v1/"]
)
def test_a_url_may_be_written_in_any_usual_way(url: str) -> None:
    assert base_url(url) == "http://nas:8000"
