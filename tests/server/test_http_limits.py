"""Limits on connections, headers, bodies and clients that do not read."""

from __future__ import annotations

import asyncio
import json
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI
from uvicorn.server import ServerState

from slotdeck.engine.server import listeners, security, serve
from slotdeck.engine.server.body import Body, BodyMemory
from slotdeck.engine.server.connections import Connections
from slotdeck.engine.server.errors import ApiError
from slotdeck.engine.server.http_limits import MAX_HEALTH_CONNECTIONS, HttpLimits, limits_of_this_process
from tests.support.stub_server import RunningServer, running

SHORT = 0.4
"""Seconds of the time limit under test. The other limits stay long."""
CHAT = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
BODY = json.dumps({"messages": [{"role": "user", "content": "say: hello"}]})


def connect(server: RunningServer, text: str = "", source: str = "127.0.0.1") -> socket.socket:
    """Connect from the address ``source`` and send ``text``."""
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=20, source_address=(source, 0))
    connection.sendall(text.encode())
    return connection


def read_all(connection: socket.socket) -> str:
    """Read until the server closes the connection."""
    received = b""
    try:
        while data := connection.recv(65536):
            received += data
    except ConnectionError:
        pass
    return received.decode()


def drip(connection: socket.socket, text: bytes) -> None:
    """Send ``text`` twenty times in each SHORT seconds."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        connection.sendall(text)
        time.sleep(SHORT / 20)


def read_answer(connection: socket.socket) -> tuple[int, dict[str, Any]]:
    """Read one answer, and no further. Returns its status and its document."""
    file = connection.makefile("rb")
    status = int(file.readline().split()[1])
    length = 0
    while line := file.readline().strip():
        if line.lower().startswith(b"content-length:"):
            length = int(line.split(b":")[1])
    return status, json.loads(file.read(length))


# -- bodies: seconds -------------------------------------------------------------------------------------------


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


# -- bodies: bytes ---------------------------------------------------------------------------------------------


MIB = 1 << 20
KEYS = ["a=key-a", "b=key-b", "c=key-c"]


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


# -- keys before bodies ----------------------------------------------------------------------------------------


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


# -- headers ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def impatient(tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with a short time limit for headers."""
    with running(tokenizer, tmp_path_factory.mktemp("impatient"), http_limits={"header_timeout": SHORT}) as server:
        yield server


def test_ops_04_a_connection_without_a_request_is_closed(impatient: RunningServer) -> None:
    with connect(impatient) as connection:
        assert read_all(connection) == ""


def test_ops_04_headers_byte_by_byte_are_answered_408(impatient: RunningServer) -> None:
    with connect(impatient) as connection:
        deadline = time.monotonic() + 20
        answer = b""
        connection.setblocking(False)
        while not answer and time.monotonic() < deadline:
            try:
                connection.send(b"G")
                time.sleep(SHORT / 20)
                answer = connection.recv(65536)
            except BlockingIOError:
                pass
    assert answer.startswith(b"HTTP/1.1 408")


def test_headers_of_a_later_request_have_a_limit_of_their_own(impatient: RunningServer) -> None:
    get = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with connect(impatient, get) as connection:
        assert read_answer(connection)[0] == 200
        time.sleep(2 * SHORT)  # a connection may be idle for longer than headers may take
        connection.sendall(get.encode())
        assert read_answer(connection)[0] == 200
        connection.sendall(b"GET /health")
        assert read_all(connection).startswith("HTTP/1.1 408")


def test_a_connection_is_closed_when_it_stays_idle(tokenizer: Path, tmp_path: Path) -> None:
    """Also after the discarded rest of a body, which stops uvicorn's own timer."""
    with running(tokenizer, tmp_path, api_key=KEYS, http_limits={"keep_alive": SHORT}) as server:
        with connect(server, "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n") as connection:
            assert read_answer(connection)[0] == 200
            assert read_all(connection) == ""
        with connect(server, CHAT + "Content-Length: 5\r\n\r\n") as connection:
            assert read_answer(connection)[0] == 401
            connection.sendall(b"12345")
            assert read_all(connection) == ""


def test_no_connection_time_limit_applies_while_a_request_is_served(tokenizer: Path, tmp_path: Path) -> None:
    limits = {"header_timeout": SHORT, "body_timeout": SHORT, "send_timeout": SHORT, "discard_timeout": SHORT}
    with running(tokenizer, tmp_path, http_limits=limits, heartbeat=SHORT) as server:
        server.runner.gate.clear()
        with server.raw_chat("say: late", stream=True) as connection:
            time.sleep(4 * SHORT)
            server.runner.gate.set()
            received = b""
            while b"[DONE]" not in received and (data := connection.recv(65536)):
                received += data
        texts = [json.loads(line[6:]) for line in received.decode().splitlines() if line.startswith("data: {")]
        assert "".join(text["choices"][0]["delta"].get("content", "") for text in texts) == "late"
        server.idle()


# -- connections -----------------------------------------------------------------------------------------------


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Connections]:
    """The connections of the servers that this test starts: first those to the API, then those to the admin socket."""
    made: list[Connections] = []

    class Noted(Connections):
        def __init__(self, limits: HttpLimits) -> None:
            super().__init__(limits)
            made.append(self)

    monkeypatch.setattr(serve, "Connections", Noted)
    return made


@pytest.fixture
def narrow(opened: list[Connections], tokenizer: Path, tmp_path: Path) -> Iterator[RunningServer]:
    """A server with at most four connections, three from one address."""
    with running(tokenizer, tmp_path, http_limits={"max_connections": 4}) as server:
        yield server


def fresh(server: RunningServer, path: str, source: str = "127.0.0.1") -> tuple[int, dict[str, Any]]:
    """GET ``path`` on a new connection, and wait until the server has closed it."""
    text = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    with connect(server, text, source) as connection:
        answer = read_answer(connection)
        assert connection.recv(1) == b""
    return answer


def test_ops_04_flt_01_connections_are_bounded_for_each_address_and_in_all(
    narrow: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    with ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(connect(narrow))
        narrow.until(lambda _: fresh(narrow, "/v1/models")[0] == 503)
        status, document = fresh(narrow, "/v1/models")
        assert (status, document["error"]["code"]) == (503, "too_many_connections")
        assert fresh(narrow, "/health") == (200, {"status": "ok"})
        assert fresh(narrow, "/v1/models", "127.0.0.2")[0] == 200
        stack.enter_context(connect(narrow, source="127.0.0.2"))
        narrow.until(lambda _: fresh(narrow, "/v1/models", "127.0.0.3")[0] == 503)
        assert fresh(narrow, "/health", "127.0.0.3")[0] == 200
        assert narrow.frame().health == "ok"
    narrow.until(lambda _: fresh(narrow, "/v1/models")[0] == 200)
    lines = [record.getMessage() for record in caplog.records if "connections" in record.getMessage()]
    assert len(lines) == 1, "one line, however many are refused"
    assert "at most 4 may be open, 3 from one address" in lines[0]


def test_a_flood_of_silent_connections_leaves_health_and_the_admin_socket(
    narrow: RunningServer, opened: list[Connections]
) -> None:
    with ExitStack() as stack:
        flood = [stack.enter_context(connect(narrow)) for _ in range(3 + 2 * MAX_HEALTH_CONNECTIONS)]
        assert fresh(narrow, "/health")[0] == 200
        assert narrow.frame().health == "ok"
        assert read_all(flood[3]) == "", "the oldest connection beyond the limit was closed"
        assert len(opened[0]) <= 3 + MAX_HEALTH_CONNECTIONS
    narrow.until(lambda _: len(opened[0]) == 0)


def test_a_connection_beyond_the_limit_is_closed_after_its_answer(narrow: RunningServer) -> None:
    with ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(connect(narrow))
        narrow.until(lambda _: fresh(narrow, "/v1/models")[0] == 503)
        connection = stack.enter_context(connect(narrow, "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"))
        assert "connection: close" in read_all(connection).lower()


def test_connections_fit_into_the_limit_of_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are for connections, for four backlogs of connections to be refused, and 80 for everything else."""
    changed: list[tuple[int, int]] = []
    limit = (1024, 1 << 20)

    def getrlimit(_: int) -> tuple[int, int]:
        return limit

    def fitting() -> tuple[int, int]:
        limits = limits_of_this_process(MIB)
        return limits.max_connections, limits.backlog

    monkeypatch.setattr(resource, "getrlimit", getrlimit)
    monkeypatch.setattr(resource, "setrlimit", lambda _, wanted: changed.append(wanted))
    assert fitting() == (4096, 128)
    assert changed == [(4096 + 4 * 128 + 80, 1 << 20)]
    changed.clear()
    limit = (1 << 20, 1 << 20)
    assert fitting() == (4096, 128)
    limit = (1024, 1024)
    assert fitting() == (1024 - 80 - 4 * 118, 118)
    limit = (256, 256)
    assert fitting() == (256 - 80 - 4 * 22, 22)
    assert not changed


def test_one_address_leaves_a_quarter_and_one_user_half() -> None:
    limits = HttpLimits(max_body=4 * MIB)
    assert limits.max_connections_per_address == 3072
    assert (limits.max_body_bytes, limits.max_body_bytes_per_user) == (32 * MIB, 16 * MIB)
    assert HttpLimits(max_body=1024).max_body_bytes == 8 * MIB


# -- clients that do not read ----------------------------------------------------------------------------------


@pytest.mark.parametrize("max_pending", [200, 1 << 30], ids=["buffer-full", "buffer-endless"])
def test_a_client_that_does_not_read_is_cut_off_and_its_handler_ends(
    tokenizer: Path, tmp_path: Path, max_pending: int
) -> None:
    with running(
        tokenizer, tmp_path, context=1 << 16, kv_tokens=1 << 17, http_limits={"send_timeout": SHORT}
    ) as server:
        server.output_router._max_pending = max_pending
        server.runner.pace = 0
        body = json.dumps({"messages": [{"role": "user", "content": "forever"}], "stream": True})
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
            connection.settimeout(20)
            connection.connect(("127.0.0.1", server.port))
            connection.sendall(f"{CHAT}Content-Length: {len(body)}\r\n\r\n{body}".encode())
            server.until(lambda frame: frame.counters.cancelled == 1)
            server.until(lambda _: server.output_router.num_open == 0)  # its handler has ended
            assert server.idle().running == 0
            received = read_all(connection)
        assert received.startswith("HTTP/1.1 200")
        assert "[DONE]" not in received
        assert server.chat("say: fine").json()["choices"][0]["message"]["content"] == "fine"


def test_an_unread_answer_does_not_keep_a_closing_connection_open(
    tokenizer: Path, tmp_path: Path, opened: list[Connections], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listeners, "SEND_BUFFER", 1 << 14)
    body = json.dumps({"messages": [{"role": "user", "content": "forever"}], "logprobs": True, "top_logprobs": 9})
    with running(tokenizer, tmp_path, http_limits={"send_timeout": SHORT}) as server, socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
        connection.settimeout(20)
        connection.connect(("127.0.0.1", server.port))
        connection.sendall(f"{CHAT}Connection: close\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        server.until(lambda frame: frame.counters.finished == 1)
        server.until(lambda _: len(opened[0]) == 0)
        answer = read_all(connection)
        assert answer.startswith("HTTP/1.1 200")
        assert not answer.endswith("}"), "it was cut off"


class Transport(asyncio.Transport):
    """Remembers whether it was closed or aborted."""

    def __init__(self) -> None:
        super().__init__()
        self.closed = self.aborted = False

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.aborted = True

    def is_closing(self) -> bool:
        return self.closed or self.aborted


async def test_a_client_that_reads_slowly_but_steadily_is_not_cut_off() -> None:
    """The server waits for it at each look, but each time for something new."""
    connections = Connections(HttpLimits(max_body=1024, send_timeout=1.0))
    config = uvicorn.Config(FastAPI(), lifespan="off", ws="none", log_config=None)
    connection = connections.protocol(
        config=config, server_state=ServerState(), app_state={}, _loop=asyncio.get_running_loop()
    )
    transport = Transport()
    connection.connection_made(transport)
    now = 0.0
    for _ in range(10):
        connection.pause_writing()
        connection.check_time(now)
        connection.check_time(now := now + 0.9)
        assert not transport.aborted
        connection.resume_writing()
    connection.pause_writing()
    connection.check_time(now)
    connection.check_time(now + 0.99)
    assert not transport.aborted
    connection.check_time(now + 1.0)
    assert transport.aborted
    assert not transport.closed, "closing would wait until everything is sent"
