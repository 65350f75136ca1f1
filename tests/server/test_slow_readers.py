"""Clients that do not read what the server sends them."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path

import pytest
import uvicorn
from fastapi import FastAPI
from uvicorn.server import ServerState

from slotdeck.engine.server import listeners
from slotdeck.engine.server.connections import Connections
from slotdeck.engine.server.http_limits import HttpLimits
from tests.support.raw_http import CHAT, SHORT, read_all
from tests.support.stub_server import running


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
