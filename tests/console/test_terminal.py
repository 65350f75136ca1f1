"""The console in a real terminal: it starts, changes a setting, survives what terminals do, and leaves no trace."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from slotdeck.console.terminal.environment import ascii_wanted, terminal_problem
from tests.support.terminal import ROOT, console, opened

pytestmark = pytest.mark.pty


def test_starts_changes_a_setting_quits_and_leaves_the_terminal_sane(
    socket: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    script = f"stty -a > {tmp_path}/before; {' '.join(console(socket))}; echo code $?; stty -a > {tmp_path}/after"
    with opened(["/bin/sh", "-c", script], environment) as terminal:
        terminal.see("SmolLM2-135M-Instruct")
        terminal.see("? help")
        terminal.press("s8", "preemption possible")
        terminal.press("\r", "slots 4→8 in force")
        terminal.see("3/8")
        terminal.press("u", "slots 8→4 taken back")
        terminal.press("q", "code 0")
        terminal.end()
        written = terminal.written
    assert (tmp_path / "before").read_text() == (tmp_path / "after").read_text()
    assert written.rindex(b"\x1b[?1049l") > written.rindex(b"\x1b[?1049h")
    assert written.rindex(b"\x1b[?25h") > written.rindex(b"\x1b[?25l")
    assert written.rindex(b"\x1b[?2004l") > written.rindex(b"\x1b[?2004h")
    for mode in (b"1000", b"1002", b"1003", b"1006", b"1015"):
        assert b"\x1b[?" + mode + b"h" not in written


def test_tui_01_mouse_codes_and_garbage_on_stdin_do_not_crash(socket: Path, environment: dict[str, str]) -> None:
    with opened(console(socket), environment) as terminal:
        terminal.see("KV pool")
        for code in (
            b"\x1b[M\x20\xff\xb1", b"\x1b[M\xc3\xa9\x51", b"\x1b[M\x40\x51\x51", b"\x1b[<0;99;200M\x1b[<0;99;200m",
            b"\x1b[32;97;5M", b"\xff\xfe\x80\x81", b"\xf0\x9f\x98\x80", b"\x1b[" + b"9" * 80,
            b"\x1b[1;9999999999999999999u", b"\x1b[99999999;1;1u",
        ):  # fmt: skip
            terminal.child.send(code)
        terminal.press("s", "1 to 256 requests")
        terminal.press("\x1b", "s slots")
        terminal.child.send("q")
        assert terminal.end() == 0


def test_tui_07_suspends_under_a_shell_and_comes_back(socket: Path, environment: dict[str, str]) -> None:
    with opened(["/bin/bash", "--norc", "--noprofile", "-i"], environment) as terminal:
        terminal.see("ready$")
        terminal.press(" ".join(console(socket)) + "\n", "? help")
        terminal.press("\x1a", "Stopped")
        left = terminal.written.rindex(b"\x1b[?1049l")
        assert left > terminal.written.rindex(b"\x1b[?1049h")
        terminal.press("fg\n", "SmolLM2")
        terminal.press("s", "1 to 256 requests")
        terminal.press("\x1b", "s slots")
        terminal.press("q", "ready$")
        terminal.child.send("exit\n")
        terminal.end()


def test_tui_07_without_a_shell_ctrl_z_is_refused_with_a_notice(socket: Path, environment: dict[str, str]) -> None:
    with opened(console(socket), environment) as terminal:
        terminal.see("? help")
        terminal.press("\x1a", "there is no shell to return to")
        terminal.child.send("q")
        assert terminal.end() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_the_console_with_the_terminal_restored(
    socket: Path, environment: dict[str, str], number: int
) -> None:
    with opened(console(socket, "hosted"), environment) as terminal:
        terminal.see("? help")
        os.kill(terminal.child.pid, number)
        assert terminal.end() == 0
        assert terminal.written.rindex(b"\x1b[?1049l") > terminal.written.rindex(b"\x1b[?1049h")


@pytest.mark.parametrize("ignored", [False, True])
def test_a_terminal_that_hangs_up_ends_the_console(socket: Path, environment: dict[str, str], ignored: bool) -> None:
    command = console(socket)
    if ignored:
        command = ["/bin/sh", "-c", "trap '' HUP; exec " + " ".join(command)]
    with opened(command, environment) as terminal:
        terminal.see("? help")
        process = psutil.Process(terminal.child.pid)
        terminal.child.ptyproc.fileobj.close()
        deadline = time.monotonic() + 20
        while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline, "the console spins on a terminal that is gone"
            time.sleep(0.05)


NOISE = """
import os, sys, threading, time, warnings
from pathlib import Path
from slotdeck.console.app import run_console
from slotdeck.console.sources.engine import EngineSource
def noise():
    for _ in range(20):
        os.write(2, b"NOISE-C\\n"); print("NOISE-P", file=sys.stderr); warnings.warn("NOISE-W"); time.sleep(0.02)
threading.Thread(target=noise, daemon=True).start()
sys.exit(run_console(EngineSource(Path(sys.argv[1])), hosted=False, socket=None))
"""


def test_tui_10_stderr_goes_to_the_log_not_to_the_screen(
    socket: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    with opened([sys.executable, "-c", NOISE, str(socket)], environment) as terminal:
        terminal.see("? help")
        log = tmp_path / "state_home" / "slotdeck" / "console.log"
        terminal.until(lambda: log.is_file() and log.read_text().count("NOISE-C") > 2, "noise in the log")
        screen = terminal.written[terminal.written.index(b"\x1b[?1049h") :]
        assert b"NOISE-C" not in screen
        terminal.child.send("q")
        assert terminal.end() == 0


@pytest.mark.parametrize("locale", [{"LC_ALL": "C"}, {"LANG": "C"}, {"SLOTDECK_ASCII": "1"}])
def test_tui_04_without_utf_8_everything_is_ascii(
    socket: Path, environment: dict[str, str], locale: dict[str, str]
) -> None:
    with opened(console(socket), environment | locale) as terminal:
        terminal.see("? help")
        terminal.press("?", "esc closes")
        terminal.press("\x1b", "q quit")
        terminal.press(":", "Search")
        terminal.press("\x1b", "KV pool")
        terminal.press("s8", "slots 4>8: 8 x 2048")
        terminal.press("\x1b", "s slots")
        terminal.child.send("q")
        assert terminal.end() == 0
        assert all(byte < 0x80 for byte in terminal.written)


@pytest.mark.parametrize("term", ["xterm", "vt100", "tmux-256color", "linux"])
def test_tui_05_other_terminals(socket: Path, environment: dict[str, str], term: str) -> None:
    with opened(console(socket), environment | {"TERM": term, "NO_COLOR": "1"}) as terminal:
        terminal.see("● decode")
        terminal.child.send("q")
        assert terminal.end() == 0
        assert not re.search(rb"\x1b\[[\d;]*(38|48);", terminal.written)


def test_a_missing_terminal_is_reported_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "needs a terminal" in (terminal_problem() or "")
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "dumb")
    assert "TERM" in (terminal_problem() or "")
    monkeypatch.setenv("TERM", "xterm")
    assert terminal_problem() is None


def test_ascii_is_chosen_by_variable_or_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LC_ALL", "LC_CTYPE", "LANG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("slotdeck.console.terminal.environment._stdout_encoding", lambda: "utf-8")
    assert not ascii_wanted()
    monkeypatch.setenv("LANG", "de_DE.ISO-8859-1")
    assert ascii_wanted()
    monkeypatch.setenv("LC_ALL", "en_US.UTF-8")
    assert not ascii_wanted()
    monkeypatch.setenv("SLOTDECK_ASCII", "1")
    assert ascii_wanted()


def test_the_console_starts_without_importing_the_engine() -> None:
    code = (
        "import sys, slotdeck.console.app, slotdeck.console.sources.engine\n"
        "heavy = ['torch', 'transformers', 'httpx', 'typer']\n"
        "heavy += [f'slotdeck.engine.{room}' for room in ('model', 'loop', 'server', 'text')]\n"
        "heavy = [module for module in heavy if module in sys.modules]\n"
        "print(heavy)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
