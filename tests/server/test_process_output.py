"""The engine process never waits for a reader of what it prints and logs."""

from __future__ import annotations

import logging
import os
import select
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from slotdeck.engine.process_output import LineWriter, non_blocking_output
from tests.support.real_engine import RealEngine
from tests.support.stub_server import MODEL

SCRIPTED = Path(__file__).with_name("scripted_engine.py")
PIPE_BYTES = 1 << 16


def fill(descriptor: int) -> int:
    """Fill a pipe. Returns the number of bytes that it took."""
    os.set_blocking(descriptor, False)
    count = 0
    try:
        while True:
            count += os.write(descriptor, b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(descriptor, True)
        return count


def read_exactly(descriptor: int, count: int) -> bytes:
    received = b""
    while len(received) < count:
        received += os.read(descriptor, count - len(received))
    return received


def read_line(descriptor: int) -> str:
    line = b""
    while not line.endswith(b"\n"):
        line += os.read(descriptor, 1)
    return line.decode()


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """The reading end and the writing end of a pipe."""
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def test_lines_are_written_in_order(pipe: tuple[int, int]) -> None:
    writer = LineWriter(pipe[1], "test")
    for number in range(100):
        writer.write(f"line {number}\n".encode())
    assert [read_line(pipe[0]) for _ in range(100)] == [f"line {number}\n" for number in range(100)]


def test_lines_beyond_the_bound_are_lost_and_counted_in_one_line(pipe: tuple[int, int]) -> None:
    filled = fill(pipe[1])
    writer = LineWriter(pipe[1], "test", max_bytes=100)
    for number in range(20):
        writer.write(f"{number:09}\n".encode())  # ten of them fit
    writer.write(b"two more\nlines\n")
    read_exactly(pipe[0], filled)
    assert [read_line(pipe[0]) for _ in range(10)] == [f"{number:09}\n" for number in range(10)]
    assert read_line(pipe[0]) == "slotdeck: 12 lines of output were lost, since nobody read them\n"
    writer.write(b"on it goes\n")
    assert read_line(pipe[0]) == "on it goes\n", "the loss is reported once"


def test_a_closed_pipe_is_ignored() -> None:
    reader, writer_end = os.pipe()
    os.close(reader)
    writer = LineWriter(writer_end, "test")
    for _ in range(3):
        writer.write(b"nobody is there\n")
        writer.drain(20)
    assert not writer._queue
    os.close(writer_end)


def test_draining_has_a_time_limit(pipe: tuple[int, int]) -> None:
    fill(pipe[1])
    writer = LineWriter(pipe[1], "test")
    writer.write(b"never read\n")
    waits = threading.Thread(target=writer.drain, args=(0.05,))
    waits.start()
    waits.join(20)
    assert not waits.is_alive()


def test_prints_and_logs_are_queued_and_the_streams_come_back(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = logging.getLogger()
    with os.fdopen(os.dup(pipe[1]), "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        monkeypatch.setattr(sys, "stderr", None)  # closed, as by `serve 2>&-`
        handler = logging.StreamHandler(stream)
        root.addHandler(handler)
        try:
            print("before")
            with non_blocking_output():
                assert sys.stdout is not stream
                print("printed", end="")
                print(" \ud800", flush=True)
                root.error("logged")
                print("unfinished", end="")
            assert sys.stdout is stream
            assert handler.stream is stream
        finally:
            root.removeHandler(handler)
    lines = [read_line(pipe[0]) for _ in range(4)]
    assert lines == ["before\n", "printed \\ud800\n", "logged\n", "unfinished\n"]


def test_flt_06_serving_goes_on_while_nobody_reads_what_is_logged(tokenizer: Path, pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    with RealEngine(command=(str(SCRIPTED), str(tokenizer)), output=writer, history_days=0) as engine:
        body = {"messages": [{"role": "user", "content": "forever"}], "stream": True}
        with httpx.stream("POST", engine.url + "/v1/chat/completions", json=body, timeout=20) as response:
            lines = response.iter_lines()
            next(line for line in lines if "content" in line)
            for number in range(900):
                changes = {"slots": 3 + number % 2, "queue": 10 + number % 2}
                answer = engine.admin.patch(
                    "/admin/settings", json={"changes": changes, "source": "x" * 60}, timeout=20
                )
                assert answer.status_code == 200
            assert not select.select([], [writer], [], 0)[1], "the pipe is full"
            assert httpx.get(engine.url + "/health", timeout=20).json() == {"status": "ok"}
            assert engine.frame().limits.revision == 900
            for _ in range(10):
                next(line for line in lines if "content" in line)
        engine.admin.post("/admin/shutdown", json={"force": True})
        assert engine.process.wait(30) == 0
    assert f"slotdeck: serving {MODEL}".encode() in os.read(reader, PIPE_BYTES)


def test_flt_01_silent_connections_beyond_the_limit_of_open_files(tokenizer: Path) -> None:
    """The process may open 300 files and gets 400 connections. It stays reachable, and its log stays short."""
    with RealEngine(
        command=(str(SCRIPTED), str(tokenizer), "300"), history_days=0, api_key="laptop=s3cret"
    ) as engine, ExitStack() as stack:  # fmt: skip
        port = int(engine.url.rpartition(":")[2])
        for _ in range(400):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20))
        for _ in range(5):
            assert httpx.get(engine.url + "/health", timeout=20).json() == {"status": "ok"}
            assert engine.frame().health == "ok"
        assert len(engine.log.read_text().splitlines()) < 20
