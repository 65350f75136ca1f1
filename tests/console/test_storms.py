"""A console under stress: many resizes, detached, behind a slow disk, left idle."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support import frames
from tests.support.console_app import console as app_over
from tests.support.console_app import seen, until
from tests.support.terminal import ROOT, console, opened

pytestmark = pytest.mark.pty


def test_a_storm_of_resizes_ends_in_a_complete_picture(socket: Path, environment: dict[str, str]) -> None:
    with opened(console(socket), environment) as terminal:
        terminal.see("KV pool")
        sizes = random.Random(7)
        for _ in range(120):
            terminal.child.setwinsize(sizes.choice((1, 3, 10, 24, 50)), sizes.choice((1, 2, 40, 60, 80, 200)))
            terminal.read()
        terminal.child.setwinsize(36, 120)
        before = len(terminal.text)
        terminal.see("last 1 min", before)
        terminal.press("s", "1 to 256 requests")
        terminal.press("\x1b", "s slots")
        terminal.child.send("q")
        assert terminal.end() == 0


def test_tui_17_an_idle_console_writes_nothing(socket: Path, environment: dict[str, str]) -> None:
    """Frames come four times a second and say nothing new: neither the terminal nor tmux has anything to do."""
    with opened(console(socket), environment) as terminal:
        terminal.see("60 s")
        for _ in range(20):  # plots and toasts of the start come first
            settled = len(terminal.written)
            for _ in range(12):
                terminal.read()  # waits a tenth of a second if nothing comes
            if settled == len(terminal.written):
                break
        assert settled == len(terminal.written)
        terminal.child.send("q")
        assert terminal.end() == 0


SLOW_DISK = """
import sys, time
from pathlib import Path
import slotdeck.engine.telemetry.history.reader
def span(self):
    time.sleep(60)
slotdeck.engine.telemetry.history.reader.History.span = span
from slotdeck.console.app import run_console
from slotdeck.console.sources.engine import EngineSource
code = run_console(EngineSource(Path(sys.argv[1])), hosted=False, socket=None)
import os
os._exit(code)  # as the command does: `slotdeck.console.cli.supervise`
"""


def test_tui_08_a_busy_thread_does_not_keep_the_console_alive(socket: Path, environment: dict[str, str]) -> None:
    with opened([sys.executable, "-c", SLOW_DISK, str(socket)], environment) as terminal:
        terminal.see("KV pool")
        terminal.press("4", "reading")
        pressed = time.monotonic()
        terminal.child.send("q")
        assert terminal.end() == 0
        assert time.monotonic() - pressed < 30, "it waited for the disk"


async def test_tui_12_keys_go_on_and_commands_do_not_cancel_each_other() -> None:
    app, source = app_over(frames.nearly_full())
    never = app_never(source)
    async with app.run_test(size=(120, 36)) as pilot:
        await seen(pilot, "slots 4/4")
        await pilot.press("s", "8", "enter")
        await until(pilot, lambda: never, "the change on its way")
        await pilot.press("j", "K", "y")
        await until(pilot, lambda: source.cancelled == ["r0"], "the cancelled request")
        await pilot.press("z")
        await seen(pilot, "slot state")


def app_never(source: object) -> list[object]:
    """Changes of settings get no answer; what was asked is listed."""
    asked: list[object] = []

    async def change(changes: dict[str, object], revision: int | None) -> object:
        import asyncio

        asked.append(changes)
        await asyncio.Event().wait()
        raise AssertionError

    source.change = change  # type: ignore[attr-defined]
    return asked


class Tmux:
    """A server of its own with one session in which the console runs."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._command = ["tmux", "-L", f"slotdeck-{os.getpid()}", "-f", os.devnull]
        self._environment = environment | {"TMUX_TMPDIR": str(folder), "SHELL": "/bin/sh"}
        self._environment.pop("TMUX", None)

    def run(self, *arguments: str) -> str:
        done = subprocess.run(
            [*self._command, *arguments], env=self._environment, cwd=ROOT, capture_output=True, text=True, check=True
        )
        return done.stdout

    def attached(self) -> list[str]:
        return [*self._command, "attach-session", "-t", "deck"]

    @property
    def environment(self) -> dict[str, str]:
        return self._environment

    def screen(self) -> str:
        return self.run("capture-pane", "-p", "-t", "deck")

    def see(self, text: str) -> None:
        deadline = time.monotonic() + 30
        while text not in (screen := self.screen()):
            assert time.monotonic() < deadline, f"{text!r} did not come about:\n{screen}"
            time.sleep(0.05)


@pytest.fixture
def tmux(tmp_path: Path, environment: dict[str, str]) -> Iterator[Tmux]:
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not installed here")
    tmux = Tmux(tmp_path, environment)
    yield tmux
    try:
        tmux.run("kill-server")
    except subprocess.CalledProcessError:
        pass  # it ended with its last session


def test_tui_01_tmux_detach_and_attach_from_another_terminal(socket: Path, tmux: Tmux) -> None:
    tmux.run("new-session", "-d", "-s", "deck", "-x", "120", "-y", "36", " ".join(console(socket)))
    tmux.see("KV pool")
    pid = int(tmux.run("list-panes", "-t", "deck", "-F", "#{pane_pid}"))
    with opened(tmux.attached(), tmux.environment) as first:
        first.see("KV pool")
        first.child.send("\x02d")  # the prefix and d: detach
        first.end()
    with opened(tmux.attached(), tmux.environment | {"TERM": "screen"}) as second:
        second.see("KV pool")
        for code in (b"\x1b[M\x20\xff\xb1", b"\x1b[<35;110;20M", b"\x1b[M\x40\x81\x51"):
            second.child.send(code)
        # The new terminal has 80x24, and the picture follows.
        tmux.see("wait p95")
        tmux.run("send-keys", "-t", "deck", "s")
        tmux.see("1 to 256 requests")
        tmux.run("send-keys", "-t", "deck", "Escape")
        tmux.see("q quit")
        screen = tmux.screen()
        assert max(len(line) for line in screen.splitlines()) <= 80
        assert psutil.pid_exists(pid)
        tmux.run("send-keys", "-t", "deck", "q")
        second.end()
    assert not re.search(r"Traceback", second.text)
