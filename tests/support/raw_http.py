"""Requests written to a socket byte by byte, for tests of limits."""

from __future__ import annotations

import json
import socket
import time
from typing import Any

from tests.support.stub_server import RunningServer

SHORT = 0.4
"""Seconds of the time limit under test. The other limits stay long."""
CHAT = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
BODY = json.dumps({"messages": [{"role": "user", "content": "say: hello"}]})
MIB = 1 << 20
KEYS = ["a=key-a", "b=key-b", "c=key-c"]


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
