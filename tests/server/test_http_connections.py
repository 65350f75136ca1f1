"""Limits on headers, idle connections, and the number of connections."""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from slotdeck.engine.server.connections import Connections
from slotdeck.engine.server.http_limits import MAX_HEALTH_CONNECTIONS, HttpLimits, limits_of_this_process
from tests.support.raw_http import CHAT, KEYS, MIB, SHORT, connect, read_all, read_answer
from tests.support.stub_server import RunningServer, running


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
