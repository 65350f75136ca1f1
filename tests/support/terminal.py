"""The console in a pseudo-terminal, over an engine that sends made-up frames."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pexpect

ROOT = Path(__file__).parents[2]
MODULE = [sys.executable, "-m", "tests.support.frame_engine"]
ESCAPES = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|[PX^_\]].*?(\x1b\\|\x07)|.)", re.DOTALL)


class Terminal:
    """A pseudo-terminal of 80x24 that keeps everything that was written to it."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self.child = pexpect.spawn(command[0], command[1:], cwd=str(ROOT), env=environment, dimensions=(24, 80))
        self.written = b""

    @property
    def text(self) -> str:
        return ESCAPES.sub("", self.written.decode("utf-8", "replace"))

    def read(self) -> None:
        try:
            self.written += self.child.read_nonblocking(65536, timeout=0.1)
        except (pexpect.TIMEOUT, pexpect.EOF):
            pass

    def until(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + 30
        while not condition():
            assert time.monotonic() < deadline, f"{what} did not come about: {self.text[-2000:]}"
            self.read()

    def see(self, text: str, after: int = 0) -> None:
        self.until(lambda: text in self.text[after:], repr(text))

    def press(self, keys: str | bytes, then: str) -> None:
        """Type ``keys``, and wait until ``then`` is written after them."""
        before = len(self.text)
        self.child.send(keys)
        self.see(then, before)

    def end(self) -> int | None:
        self.until(lambda: not self.child.isalive(), "the end")
        self.read()
        return self.child.exitstatus


@contextmanager
def opened(command: list[str], environment: dict[str, str]) -> Iterator[Terminal]:
    terminal = Terminal(command, environment)
    try:
        yield terminal
    finally:
        terminal.child.close(force=True)


def console(socket: Path, *more: str) -> list[str]:
    return [*MODULE, "--console", str(socket), *more]
