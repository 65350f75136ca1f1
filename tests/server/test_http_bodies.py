"""Limits on request bodies: seconds, bytes of all and of one user, and keys before bodies."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from slotdeck.engine.server import security
from slotdeck.engine.server.body import Body, BodyMemory
from slotdeck.engine.server.errors import ApiError
from tests.support.raw_http import BODY, CHAT, KEYS, MIB, SHORT, connect, drip, read_all, read_answer
from tests.support.stub_server import RunningServer, running


@pytest.fixture(scope="module")
def hasty(tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with a short time limit for bodies."""
    with running(tokenizer, tmp_path_factory.mktemp("hasty"), http_limits={"body_timeout": SHORT}) as server:
        yield server


def test_a_body_that_never_comes_is_answered_408(hasty: RunningServer) -> None:
    with connect(hasty, CHAT + "Content-Length: 10\r\n\r\n") as connection:
        answer = read_all(connection)
    assert answer.startswith("HTTP/1.1 408")
    assert '"code":"body_timeout"' in answer
    assert "connection: close" in answer


def test_the_time_limit_is_for_the_whole_body_even_if_it_comes_steadily(hasty: RunningServer) -> None:
    with connect(hasty, CHAT + f"Content-Length: {len(BODY)}\r\n\r\n") as connection:
        connection.setblocking(False)
        answer = b""
        began = time.monotonic()
        for byte in BODY.encode():  # 67 bytes take three times the limit
            connection.send(bytes([byte]))
            time.sleep(SHORT / 20)
            try:
                answer = connection.recv(65536)
                break
            except BlockingIOError:
                assert time.monotonic() - began < 20
    assert answer.startswith(b"HTTP/1.1 408")


def test_a_body_in_two_parts_is_served(server: RunningServer) -> None:
    with connect(server, CHAT + f"Content-Length: {len(BODY)}\r\n\r\n{BODY[:5]}") as connection:
        connection.sendall(BODY[5:].encode())
        assert read_answer(connection)[0] == 200


def unfinished(server: RunningServer, user: str, size: int = MIB) -> socket.socket:
    """Send a request of ``user``, all but its last byte."""
    head = CHAT + f"Authorization: Bearer key-{user}\r\nContent-Length: {size}\r\n\r\n"
    return connect(server, head + BODY.ljust(size - 1))


def ask(server: RunningServer, user: str, size: int = MIB) -> httpx.Response:
    return server.client.post(
        "/v1/chat/completions", content=BODY.ljust(size), headers={"Authorization": f"Bearer key-{user}"}
    )


@pytest.fixture
def memories(monkeypatch: pytest.MonkeyPatch) -> list[BodyMemory]:
    """The memories of the servers that this test starts: first that of the API, then that of the admin socket."""
    made: list[BodyMemory] = []

    class Noted(BodyMemory):
        def __init__(self, max_bytes: int, max_bytes_per_user: int) -> None:
            super().__init__(max_bytes, max_bytes_per_user)
            made.append(self)

    monkeypatch.setattr(security, "BodyMemory", Noted)
    return made


@pytest.fixture
def small(memories: list[BodyMemory], tokenizer: Path, tmp_path: Path) -> Iterator[RunningServer]:
    """A server with keys that holds 8 MiB of bodies, 4 MiB of one user."""
    with running(tokenizer, tmp_path, api_key=KEYS, max_body=MIB) as server:
        yield server


def test_flt_02_bodies_in_flight_are_bounded_for_each_user_and_in_all(
    small: RunningServer, memories: list[BodyMemory]
) -> None:
    held = memories[0]
    with ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(unfinished(small, "a"))
        small.until(lambda _: held.held == 4 * (MIB - 1))
        refused = ask(small, "a")
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "too_many_bodies"
        assert 1 <= int(refused.headers["retry-after"]) <= 5
        frame = small.frame()
        assert (frame.counters.received, frame.counters.rejected) == (1, 1)
        assert ask(small, "b").status_code == 200
        for _ in range(4):
            stack.enter_context(unfinished(small, "b"))
        small.until(lambda _: held.held == 8 * (MIB - 1))
        assert ask(small, "c").json()["error"]["code"] == "too_many_bodies"
        assert small.client.get("/health").status_code == 200
        small.frame()
    small.until(lambda _: held.held == 0)
    assert ask(small, "c").status_code == 200
    assert ask(small, "a").status_code == 200


def test_a_body_that_is_too_much_is_refused_before_it_is_sent(small: RunningServer, memories: list[BodyMemory]) -> None:
    with ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(unfinished(small, "a"))
        small.until(lambda _: memories[0].held == 4 * (MIB - 1))
        head = CHAT + f"Authorization: Bearer key-a\r\nContent-Length: {MIB}\r\n\r\n"
        assert read_answer(stack.enter_context(connect(small, head)))[0] == 503


def test_a_body_is_released_once_it_is_tokenized(small: RunningServer, memories: list[BodyMemory]) -> None:
    """Streams do not keep their bodies: more of them run than one user may have bodies in progress."""
    small.runner.pace = 0.02
    body = json.dumps({"messages": [{"role": "user", "content": "forever"}], "stream": True}).ljust(MIB)
    with ExitStack() as stack:
        for _ in range(6):
            connection = connect(small, CHAT + f"Authorization: Bearer key-a\r\nContent-Length: {MIB}\r\n\r\n{body}")
            stack.enter_context(connection)
            assert connection.recv(12) == b"HTTP/1.1 200"
        assert memories[0].held == 0
    small.idle()


@pytest.mark.parametrize(
    ("path", "content", "status"),
    [
        ("/v1/chat/completions", b"x", 400),
        ("/v1/chat/completions", b"{}", 400),
        ("/v1/models", b"{}", 405),
        ("/nothing", b"{}", 404),
        ("/v1/chat/completions", b"x" * (MIB + 1), 413),
    ],
)
def test_a_body_is_released_when_it_is_refused(
    small: RunningServer, memories: list[BodyMemory], path: str, content: bytes, status: int
) -> None:
    answer = small.client.post(path, content=iter([content]), headers={"Authorization": "Bearer key-a"})
    assert answer.status_code == status
    small.until(lambda _: memories[0].held == 0)


def test_body_memory_counts_what_each_user_holds() -> None:
    memory = BodyMemory(max_bytes=10, max_bytes_per_user=6)
    one, two, other = Body(memory, "a"), Body(memory, "a"), Body(memory, "b")
    one.add(b"12345")
    two.add(b"6")
    assert (memory.held, bytes(one.data), len(two)) == (6, b"12345", 1)
    with pytest.raises(ApiError, match="you have too many"):
        two.add(b"7")
    other.add(b"1234")
    with pytest.raises(ApiError, match="this server has too many"):
        other.add(b"5")
    assert memory.held == 10
    one.release()
    one.release()
    assert memory.held == 5
    two.add(b"78")
    assert memory.held == 7


def test_nothing_of_a_body_is_read_without_a_key(small: RunningServer) -> None:
    """Also not for ``/health``, which needs no key: it is answered before its body comes."""
    with connect(small, CHAT + f"Content-Length: {MIB}\r\n\r\n") as connection:
        assert read_answer(connection)[0] == 401
    with connect(small, f"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: {MIB}\r\n\r\n") as connection:
        assert read_answer(connection)[0] == 200


def test_the_rest_of_a_refused_body_is_discarded_for_a_limited_time(tokenizer: Path, tmp_path: Path) -> None:
    with running(tokenizer, tmp_path, api_key=KEYS, http_limits={"discard_timeout": SHORT}) as server:
        with connect(server, CHAT + "Transfer-Encoding: chunked\r\n\r\n") as connection:
            assert read_answer(connection)[0] == 401
            with pytest.raises(ConnectionError):
                drip(connection, b"1\r\nx\r\n")
        # If the body ends in time, the connection stays usable.
        with connect(server, CHAT + "Content-Length: 5\r\n\r\n") as connection:
            assert read_answer(connection)[0] == 401
            connection.sendall(b"12345GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert read_answer(connection)[0] == 200
