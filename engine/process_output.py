"""Lets the process print and log without ever waiting for a reader.

A full pipe that nobody reads blocks the thread that writes to it. Within ``non_blocking_output()`` everything that
Python writes to stdout and stderr goes to bounded queues instead, and separate threads write it out. When a queue is
full, lines are lost. Once somebody reads again, one line says how many.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import TextIO

MAX_QUEUED_BYTES = 1 << 20
"""How much output is kept while nobody reads, for stdout and stderr each."""
DRAIN_SECONDS = 1.0
"""How long the end of the process waits for the last lines to be written."""


class LineWriter:
    """Writes lines to a file descriptor in a thread of its own."""

    def __init__(self, descriptor: int, name: str, max_bytes: int = MAX_QUEUED_BYTES) -> None:
        self._descriptor, self._max_bytes = descriptor, max_bytes
        self._changed = threading.Condition()
        self._queue: deque[bytes] = deque()
        self._size = 0
        self._lost = 0
        self._writing = False
        threading.Thread(target=self._run, name=f"write-{name}", daemon=True).start()

    def write(self, lines: bytes) -> None:
        """Queue whole ``lines``, all or none. Never blocks."""
        with self._changed:
            if self._size + len(lines) <= self._max_bytes:
                self._put(lines)
            else:
                self._lost += lines.count(b"\n")
            self._changed.notify_all()

    def drain(self, timeout: float) -> None:
        """Wait until everything is written, for at most ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        with self._changed:
            while (self._queue or self._writing) and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)

    def _put(self, lines: bytes) -> None:
        self._queue.append(lines)
        self._size += len(lines)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._queue and not self._lost:
                    self._changed.wait()
                if not self._queue:
                    self._put(f"slotdeck: {self._lost} lines of output were lost, since nobody read them\n".encode())
                    self._lost = 0
                lines = self._queue.popleft()
                self._writing = True
            left = memoryview(lines)
            try:
                while left:
                    left = left[os.write(self._descriptor, left) :]
            except OSError:  # the reader is gone or the disk is full: go on without this output
                pass
            with self._changed:
                self._size -= len(lines)
                self._writing = False
                self._changed.notify_all()


class NonBlockingStream(io.TextIOBase):
    """A text stream that replaces ``original``, stdout or stderr. ``writer`` writes its lines."""

    def __init__(self, original: TextIO, writer: LineWriter) -> None:
        super().__init__()
        self._original, self._writer = original, writer
        self._lock = threading.Lock()
        self._begun = ""  # an unfinished line

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._original.encoding or "utf-8"

    def fileno(self) -> int:
        return self._original.fileno()

    def isatty(self) -> bool:
        return self._original.isatty()

    def writable(self) -> bool:
        return True

    def write(self, text: str, /) -> int:
        with self._lock:
            lines, newline, self._begun = (self._begun + text).rpartition("\n")
            if newline:
                self._writer.write((lines + newline).encode(self.encoding, "backslashreplace"))
        return len(text)

    def drain(self, timeout: float) -> None:
        if self._begun:
            self.write("\n")
        self._writer.drain(timeout)


@contextlib.contextmanager
def non_blocking_output() -> Iterator[None]:
    """Replace ``sys.stdout`` and ``sys.stderr``, also in the handlers of the root logger.

    At the end of the context, wait at most DRAIN_SECONDS for queued output, and restore the original streams.
    """
    originals = {name: stream for name in ("stdout", "stderr") if (stream := getattr(sys, name)) is not None}
    streams = {
        name: NonBlockingStream(original, LineWriter(original.fileno(), name)) for name, original in originals.items()
    }
    handlers = [
        (handler, handler.stream, streams[name])
        for handler in logging.getLogger().handlers
        for name, original in originals.items()
        if isinstance(handler, logging.StreamHandler) and handler.stream is original
    ]
    for name, stream in streams.items():
        originals[name].flush()
        setattr(sys, name, stream)
    for handler, _, stream in handlers:
        handler.setStream(stream)
    try:
        yield
    finally:
        deadline = time.monotonic() + DRAIN_SECONDS
        for stream in streams.values():
            stream.drain(max(0.0, deadline - time.monotonic()))
        for handler, original, _ in handlers:
            handler.setStream(original)
        for name, original in originals.items():
            setattr(sys, name, original)
