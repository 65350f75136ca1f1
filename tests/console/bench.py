"""What the console costs, beside an empty Textual app in the same run: first paint and CPU, in a real pty.

``python -m tests.console.bench [--seconds 20] [--runs 7] [--socket PATH]``. The frames are made up: one engine whose
picture stands still, and one with 20 slots of which every one changes in every frame. With ``--socket`` the console
also watches the engine behind that admin socket.
"""

from __future__ import annotations

import argparse
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from fcntl import ioctl
from pathlib import Path
from statistics import median

import psutil

from slotdeck.console.bench.machine import describe_machine, machine_line

ROOT = Path(__file__).parents[2]
ROWS, CELLS = 24, 80
FRAMES_PER_SECOND = 4
WARM_UP = 3.0
"""Seconds before CPU is counted: imports, first pages, caches of lines."""

EMPTY = """
from textual.app import App
from textual.screen import Screen
class Base(Screen):
    def render(self):
        return "painted"
class Empty(App):
    def get_default_screen(self):
        return Base()
Empty().run(mouse=False)
"""
CONSOLE = """
import sys
from pathlib import Path
from slotdeck.console.terminal.startup import stop_collecting
stop_collecting()
from slotdeck.console.app import run_console
from slotdeck.console.sources.engine import EngineSource
run_console(EngineSource(Path(sys.argv[1])), hosted=False, socket=Path(sys.argv[1]))
"""
ATTACH = "import sys; from slotdeck.console.cli.entry import run; sys.argv[0] = 'slotdeck'; run()"


@contextmanager
def in_a_pty(code: str, *arguments: str) -> Iterator[tuple[int, subprocess.Popen[bytes], float]]:
    """Python in a terminal of 80x24: the terminal's other end, the process, and when it was started."""
    master, slave = pty.openpty()
    ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, CELLS, 0, 0))
    unwanted = ("NO_COLOR", "SLOTDECK_ASCII", "PYTHONDONTWRITEBYTECODE")
    environment = {name: value for name, value in os.environ.items() if name not in unwanted}
    environment |= {
        "TERM": "xterm-256color",
        "COLORTERM": "truecolor",
        "LC_ALL": "C.UTF-8",
        "PYTHONPATH": f"{ROOT}/.src:{ROOT}",
    }
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", code, *arguments],
        stdin=slave, stdout=slave, stderr=slave, cwd=ROOT, env=environment, start_new_session=True,
    )  # fmt: skip
    os.close(slave)
    try:
        yield master, process, started
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(master)


def drain(master: int, seconds: float) -> bytes:
    """What the terminal was sent within so many seconds, at most one read after the first bytes."""
    try:
        return os.read(master, 1 << 16) if select.select([master], [], [], seconds)[0] else b""
    except OSError as error:
        raise RuntimeError("what was to be measured ended by itself") from error


def seconds_until(code: str, arguments: tuple[str, ...], marks: tuple[bytes, ...]) -> list[float]:
    """Seconds from the start of the process until each of ``marks`` was written."""
    with in_a_pty(code, *arguments) as (master, _, started):
        written, found = b"", []
        while len(found) < len(marks):
            if time.perf_counter() - started > 30:
                raise RuntimeError(f"{marks[len(found)]!r} was never painted: {written[-500:]!r}")
            written += drain(master, 1.0)
            screen = written[written.find(b"\x1b[?1049h") :] if b"\x1b[?1049h" in written else b""
            while len(found) < len(marks) and marks[len(found)] in screen:
                found.append(time.perf_counter() - started)
        return found


def cpu_seconds(code: str, arguments: tuple[str, ...], mark: bytes, seconds: float) -> float:
    """CPU that the process and its children took within ``seconds``, after ``mark`` was painted and a warm-up."""
    with in_a_pty(code, *arguments) as (master, process, _):
        written = b""
        while mark not in written:
            written += drain(master, 1.0)
        keep_reading(master, WARM_UP)
        before = taken(process.pid)
        keep_reading(master, seconds)
        return taken(process.pid) - before


def keep_reading(master: int, seconds: float) -> None:
    """Be the terminal for so long."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        drain(master, left)


def taken(pid: int) -> float:
    """CPU seconds of a process and its children so far."""
    processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    return sum(sum(process.cpu_times()[:2]) for process in processes)


@contextmanager
def fake_engine(folder: Path, situation: str) -> Iterator[Path]:
    """Made-up frames of one situation behind a socket."""
    path = folder / f"{situation}.sock"
    command = [sys.executable, "-m", "tests.support.frame_engine", str(path), situation]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as engine:
        assert engine.stdout is not None
        engine.stdout.readline()
        try:
            yield path
        finally:
            engine.terminate()


def first_paints(steady: Path, runs: int) -> None:
    """Alternating starts, so that what else the machine does meets all of them alike."""
    ways: tuple[tuple[str, str, tuple[str, ...], tuple[bytes, ...]], ...] = (
        ("empty Textual app", EMPTY, (), (b"painted",)),
        ("the console", CONSOLE, (str(steady),), (b"slotdeck", b"KV pool")),
        ("slotdeck attach", ATTACH, ("attach", "--socket", str(steady)), (b"slotdeck", b"KV pool")),
    )
    found: dict[str, list[list[float]]] = {name: [] for name, *_ in ways}
    for run in range(runs + 1):
        for name, code, arguments, marks in ways:
            seconds = seconds_until(code, arguments, marks)
            if run:  # the first one only warms the disk's cache
                found[name].append(seconds)
    print(f"first paint, median of {runs} starts (spread)            first numbers")
    base = median(times[0] for times in found[ways[0][0]])
    for name, times in found.items():
        columns = []
        for column in zip(*times, strict=True):
            middle = median(column)
            columns.append(f"{middle:.2f} s  {middle / base:.2f}x  ({min(column):.2f}-{max(column):.2f})")
        print(f"  {name:<20} {'      '.join(columns)}")


def cpu(sources: list[tuple[str, str, tuple[str, ...], bytes]], seconds: float) -> None:
    """CPU of each, one after the other."""
    print(f"CPU over {seconds:.0f} s, {CELLS}x{ROWS}, {FRAMES_PER_SECOND} frames a second")
    for name, code, arguments, mark in sources:
        used = cpu_seconds(code, arguments, mark, seconds)
        tick = 1000 * used / seconds / FRAMES_PER_SECOND
        print(f"  {name:<34} {100 * used / seconds:5.1f}% of a core   {tick:5.1f} ms a tick")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.console.bench", description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each CPU measurement")
    parser.add_argument("--runs", type=int, default=7, help="starts of each kind; 0: measure CPU only")
    parser.add_argument("--socket", help="also watch the engine behind this admin socket")
    given = parser.parse_args()
    print(machine_line(describe_machine()))
    print(f"load average {os.getloadavg()[0]:.2f}: other work beside this makes every number larger")
    with tempfile.TemporaryDirectory() as folder:
        # As on any machine that started it once before: compiled, whatever this shell says about it.
        os.environ["PYTHONPYCACHEPREFIX"] = f"{folder}/compiled"
        for name in ("STATE", "CONFIG", "DATA", "RUNTIME"):
            os.environ[f"XDG_{name}_HOME" if name != "RUNTIME" else "XDG_RUNTIME_DIR"] = folder
        with fake_engine(Path(folder), "steady") as steady, fake_engine(Path(folder), "busy") as busy:
            if given.runs:
                first_paints(steady, given.runs)
            if given.seconds:
                sources = [
                    ("empty Textual app", EMPTY, (), b"painted"),
                    ("console, nothing happens", CONSOLE, (str(steady),), b"KV pool"),
                    ("console, 20 busy slots", CONSOLE, (str(busy),), b"KV pool"),
                ]
                if given.socket:
                    sources.append(("console over the given engine", CONSOLE, (given.socket,), b"KV pool"))
                cpu(sources, given.seconds)


if __name__ == "__main__":
    main()
