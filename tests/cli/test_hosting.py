"""`slotdeck` in a terminal: one engine, found again whatever ended the console, and a terminal left sane."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pexpect
import pytest

from slotdeck.console.hosting.process import exit_code as process_end
from slotdeck.console.hosting.process import lives
from tests.support.deck import DRIVER, PATIENCE, Deck, console_pid, eventually, exit_code, process_runs


def test_the_first_start_shows_progress_and_hosts_and_the_next_attaches(deck: Deck) -> None:
    first = deck.terminal("--slots", "3")
    first.expect_exact("loading [weights]")
    console_pid(first)
    first.expect_exact("hosted=True")
    first.expect_exact("notices=[]")
    first.sendline("quit")
    assert exit_code(first) == 0
    [engine] = deck.engine_pids()
    assert process_runs(engine)

    second = deck.terminal("--slots", "5", "--host", "127.0.0.1", "--threads", "2")
    console_pid(second)
    second.expect(r"notices=\['engine found, running since \d\d:\d\d, pid (\d+)', (.*)\]")
    assert second.match is not None
    assert int(second.match.group(1)) == engine
    assert "not applied to the running engine" in second.match.group(2)
    assert "--slots 5 (it runs with 3, key s changes it)" in second.match.group(2)
    assert "--threads 2" in second.match.group(2)
    assert "--host" not in second.match.group(2)
    second.sendline("quit")
    assert exit_code(second) == 0
    assert deck.engine_pids() == [engine]


@pytest.mark.parametrize("command", [(), ("attach",)])
def test_variables_that_differ_from_what_runs_are_named_as_flags_are(deck: Deck, command: tuple[str, ...]) -> None:
    """Beside what is in force, however it is written; a flag goes before the variable of the same setting."""
    taken = {"SLOTDECK_SLOTS": "3", "SLOTDECK_ITL_TARGET": "0.15s", "SLOTDECK_KV_TOKENS": "1GiB"}
    first = deck.terminal(**taken)
    console_pid(first)
    first.sendline("quit")
    exit_code(first)

    same = deck.terminal(*command, **taken)
    console_pid(same)
    same.expect(r"notices=\['engine found, running since \d\d:\d\d, pid \d+'\]")
    same.sendline("quit")
    exit_code(same)

    changed = {"SLOTDECK_SLOTS": "6", "SLOTDECK_PREFIX_CACHE": "off", "SLOTDECK_API_KEY": "laptop=s3cret"}
    changed["SLOTDECK_SLOT"] = "6"  # mistyped
    other = deck.terminal(*command, **changed)
    console_pid(other)
    other.expect_exact("ignored because there is no such setting: SLOTDECK_SLOT (did you mean SLOTDECK_SLOTS?)")
    other.expect_exact("not applied to the running engine: ")
    other.expect_exact("SLOTDECK_SLOTS=6 (it runs with 3, key s changes it)")
    other.expect_exact("SLOTDECK_PREFIX_CACHE=off (it runs with on), SLOTDECK_API_KEY'] way")
    other.sendline("quit")
    exit_code(other)

    if not command:
        both = deck.terminal("--slots", "7", SLOTDECK_SLOTS="6")
        console_pid(both)
        both.expect_exact("not applied to the running engine: --slots 7 (it runs with 3, key s changes it)']")


def test_the_engine_that_slotdeck_started_is_hosted_for_a_later_slotdeck_too(deck: Deck) -> None:
    """After a lost SSH line the admin must still be able to stop it from the console."""
    for _ in range(2):
        terminal = deck.terminal()
        console_pid(terminal)
        terminal.expect_exact("hosted=True")
        terminal.sendline("quit")
        exit_code(terminal)
    attached = deck.terminal("attach")
    console_pid(attached)
    attached.expect_exact("hosted=False")


def test_a_console_on_a_running_engine_does_not_wait_for_the_command_line(deck: Deck) -> None:
    """Unless something beside the command's name was said: settings are the commands' business."""
    socket = deck.environment.pop("SLOTDECK_SOCKET")
    engine = None
    for arguments, variables, way, hosted in (
        ((), {}, "commands", True),  # nothing runs yet
        ((), {}, "quick", True),
        (("attach",), {}, "quick", False),
        (("attach", "--socket", str(deck.folder / "runtime" / "slotdeck" / "engine.sock")), {}, "quick", False),
        (("--slots", "5"), {}, "commands", True),
        ((), {"SLOTDECK_SLOTS": "5"}, "commands", True),
    ):
        terminal = deck.terminal(*arguments, **variables)
        console_pid(terminal)
        terminal.expect_exact(f"hosted={hosted}")
        if engine is not None:
            terminal.expect(rf"engine found, running since \d\d:\d\d, pid {engine}")
        terminal.expect_exact(f"way={way}")
        terminal.sendline("quit 7")
        assert exit_code(terminal) == 7
        [engine] = deck.engine_pids()
    gone = deck.terminal("attach", "--socket", socket)
    gone.expect_exact("no engine runs on")
    assert exit_code(gone) == 4
    config = deck.folder / "config" / "slotdeck" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text("slots = 'many'\n")
    wrong = deck.terminal("attach")
    wrong.expect_exact("slots")
    assert exit_code(wrong) == 2


def test_two_at_once_end_with_one_engine(deck: Deck) -> None:
    terminals = [deck.terminal(FAKE_ENGINE_LOAD="1") for _ in range(2)]
    for terminal in terminals:
        console_pid(terminal)
    assert len(deck.engine_pids()) == 1


def test_an_engine_started_by_someone_else_meanwhile_is_joined(deck: Deck) -> None:
    """A `slotdeck serve` that is still loading is waited for, and no second engine is tried."""
    loaded = deck.log.with_name("loaded")
    serving = pexpect.spawn(
        sys.executable, [*DRIVER, "serve"], env=deck.environment | {"FAKE_ENGINE": f"until {loaded}"},
        encoding="utf-8", timeout=PATIENCE,
    )  # fmt: skip
    try:
        serving.expect(r"fake engine (\d+)")
        assert serving.match is not None
        winner = int(serving.match.group(1))
        serving.expect_exact("loading")
        terminal = deck.terminal()
        terminal.expect_exact(f"starting or stopping (pid {winner})")
        loaded.parent.mkdir(parents=True, exist_ok=True)
        loaded.touch()
        console_pid(terminal)
        terminal.expect_exact("hosted=False")
        terminal.expect(rf"running since [\d:]+, pid {winner}")
        assert deck.engine_pids() == []
    finally:
        serving.kill(signal.SIGTERM)
        serving.close(force=True)


@pytest.mark.parametrize(("engine_code", "code"), [(3, 3), (2, 2), (1, 1), (70, 1)])
def test_an_engine_that_ends_early_is_quoted(deck: Deck, engine_code: int, code: int) -> None:
    terminal = deck.terminal(FAKE_ENGINE=f"fail {engine_code}")
    terminal.expect_exact("slotdeck: port 8000 is in use")
    terminal.expect_exact(f"the engine ended before it served (exit code {engine_code})")
    terminal.expect_exact(str(deck.log))
    assert exit_code(terminal) == code


def test_ctrl_c_while_the_engine_starts_stops_it(deck: Deck) -> None:
    terminal = deck.terminal(FAKE_ENGINE="wait")
    terminal.expect_exact("loading")
    terminal.sendintr()
    terminal.expect_exact("stopped before the engine served")
    assert exit_code(terminal) == 1
    [engine] = deck.engine_pids()
    assert not process_runs(engine)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_tui_02_a_console_that_dies_hard_leaves_a_sane_terminal_and_a_serving_engine(
    deck: Deck, number: signal.Signals
) -> None:
    """Alternate screen left, cursor shown, mouse reports off, and one line that says what happened."""
    terminal = deck.terminal()
    os.kill(console_pid(terminal), number)
    terminal.expect(rf"{number.name} ended the console")
    printed = terminal.before or ""
    for code in ("\x1b[?1049l", "\x1b[?25h", "\x1b[?1000l", "\x1b[?1003l", "\x1b[?1006l", "\x1b[?2004l"):
        assert code in printed
    assert exit_code(terminal) == 1
    assert process_runs(deck.engine_pids()[0])


def test_tui_02_an_exception_of_the_console_resets_the_terminal_before_it_is_shown(deck: Deck) -> None:
    terminal = deck.terminal(FAKE_CONSOLE="raise")
    terminal.expect_exact("\x1b[?1049l")
    terminal.expect_exact("RuntimeError: a fault of the screen")
    assert exit_code(terminal) == 1
    assert process_runs(deck.engine_pids()[0])


def in_bash(deck: Deck) -> pexpect.spawn[str]:
    """`slotdeck` started from an interactive shell, which survives it."""
    shell = pexpect.spawn(
        "/bin/bash", ["--norc", "-i"], env=deck.environment | {"PS1": "shell> "}, cwd=str(deck.folder),
        encoding="utf-8", timeout=PATIENCE,
    )  # fmt: skip
    deck.terminals.append(shell)
    shell.expect_exact("shell> ")
    shell.sendline(f"{sys.executable} {' '.join(DRIVER)}")
    return shell


def test_kill_9_of_the_command_itself_ends_the_console_but_not_the_engine(deck: Deck) -> None:
    shell = in_bash(deck)
    console = console_pid(shell)
    command = int(Path(f"/proc/{console}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(command, signal.SIGKILL)
    shell.expect_exact("\x1b[?1049l")
    eventually(lambda: not process_runs(console))
    assert process_runs(deck.engine_pids()[0])


def test_a_lost_line_leaves_the_engine_serving(deck: Deck) -> None:
    terminal = deck.terminal()
    console = console_pid(terminal)
    terminal.close()  # The terminal hangs up, as when SSH is cut.
    eventually(lambda: not process_runs(console))
    assert process_runs(deck.engine_pids()[0])
    again = deck.terminal()
    console_pid(again)
    again.expect(rf"running since [\d:]+, pid {deck.engine_pids()[0]}")


def test_tui_07_ctrl_z_stops_the_job_and_fg_continues_the_console_once(deck: Deck) -> None:
    shell = in_bash(deck)
    os.kill(console_pid(shell), signal.SIGSTOP)
    shell.expect_exact("Stopped")
    shell.expect_exact("shell> ")
    shell.sendline("fg")
    shell.expect_exact("CONTINUED")
    shell.sendline("quit")
    shell.expect_exact("shell> ")
    assert "CONTINUED" not in (shell.before or "")
    assert process_runs(deck.engine_pids()[0])


def test_the_console_s_exit_code_is_that_of_the_command(deck: Deck) -> None:
    terminal = deck.terminal()
    console_pid(terminal)
    terminal.sendline("quit 5")
    assert exit_code(terminal) == 5


def test_a_mistyped_variable_is_named_before_the_console_opens_and_when_it_serves_headless(deck: Deck) -> None:
    """Once each, also on an engine that runs: a console that starts quickly does not look at variables."""
    for _ in range(2):
        terminal = deck.terminal(SLOTDECK_SLOT="8")
        terminal.expect_exact("SLOTDECK_SLOT (did you mean SLOTDECK_SLOTS?)")
        console_pid(terminal)
        assert "SLOTDECK_SLOT" not in (terminal.before or "")
        terminal.sendline("quit")
        assert exit_code(terminal) == 0
    headless = deck.without_terminal("serve", SLOTDECK_SLOT="8", FAKE_ENGINE="fail 3")
    assert headless.stderr.count("SLOTDECK_SLOT ") == 1


@pytest.mark.parametrize("term", ["dumb", ""])
def test_without_a_usable_terminal_it_says_so_in_one_line_and_serves(deck: Deck, term: str) -> None:
    terminal = deck.terminal("--slots", "7", TERM=term)
    terminal.expect(r"slotdeck: the console needs a terminal[^\r\n]*serving headless")
    terminal.expect(r"fake engine (\d+) slots 7")
    assert terminal.match is not None
    assert int(terminal.match.group(1)) == terminal.pid  # The same process: a supervisor's signals reach the engine.
    terminal.expect_exact("serving on")
    terminal.kill(signal.SIGTERM)
    assert exit_code(terminal) == 0


def test_the_launcher_leaves_word_of_how_its_engine_ended(deck: Deck) -> None:
    terminal = deck.terminal()
    console_pid(terminal)
    [engine] = deck.engine_pids()
    os.kill(engine, signal.SIGKILL)
    socket = Path(deck.environment["SLOTDECK_SOCKET"])
    eventually(lambda: process_end(socket, engine) == -signal.SIGKILL)
    assert not lives(engine)
    terminal.sendline("quit 1")
    assert exit_code(terminal) == 1


def test_an_engine_that_is_loading_is_not_called_absent(deck: Deck) -> None:
    serving = pexpect.spawn(
        sys.executable, [*DRIVER, "serve"], env=deck.environment | {"FAKE_ENGINE": "wait"}, encoding="utf-8",
        timeout=PATIENCE,
    )  # fmt: skip
    try:
        serving.expect(r"fake engine (\d+)")
        assert serving.match is not None
        pid = serving.match.group(1)
        serving.expect_exact("loading")
        terminal = deck.terminal("attach")
        terminal.expect_exact(f"waiting for an engine that is starting or stopping (pid {pid})")
        terminal.sendintr()
        terminal.expect_exact("stopped waiting for the other engine")
        assert exit_code(terminal) == 1
        info = json.loads(deck.without_terminal("info", "--json").stdout)
        assert f"(pid {pid}) is still loading" in info["engine"]["problem"]
        assert "none runs" not in deck.without_terminal("info").stdout
        for command in (["load", "--duration", "1"], ["top", "--once"], ["doctor"]):
            result = deck.without_terminal(*command)
            assert (result.returncode, f"(pid {pid}) is still loading" in result.stderr) == (4, True)
    finally:
        serving.kill(signal.SIGKILL)
        serving.close(force=True)


def test_a_slotdeck_that_meets_a_draining_engine_waits_and_then_starts_its_own(deck: Deck) -> None:
    drained = deck.folder / "drained"
    console_pid(first := deck.terminal(FAKE_ENGINE=f"drain {drained}"))
    [old] = deck.engine_pids()
    os.kill(old, signal.SIGTERM)
    eventually(lambda: json.loads(deck.without_terminal("top", "--json").stdout)["health"] == "draining")
    second = deck.terminal()
    second.expect_exact(f"waiting for an engine that is starting or stopping (pid {old})")
    drained.touch()
    console_pid(second)
    second.expect_exact("hosted=True")
    assert len(deck.engine_pids()) == 2
    assert not process_runs(old)
    first.sendline("quit")


def test_an_engine_that_slotdeck_is_starting_is_not_called_absent_before_it_holds_its_lock(deck: Deck) -> None:
    """It imports for seconds first. `slotdeck attach` waits for it; what only looks says who starts it."""
    imported = deck.folder / "imported"
    starting = deck.terminal(FAKE_ENGINE=f"import {imported}")
    eventually(deck.engine_pids)
    said = f"`slotdeck` (pid {starting.pid}) is starting an engine"
    for command in (["top", "--once"], ["doctor"]):
        result = deck.without_terminal(*command)
        assert (result.returncode, said in result.stderr) == (4, True)
    assert said in deck.without_terminal("info").stdout
    attached = deck.terminal("attach")
    attached.expect_exact(f"waiting for an engine that is starting or stopping (pid {starting.pid})")
    imported.touch()
    for terminal in (starting, attached):
        console_pid(terminal)
        terminal.expect_exact(f"hosted={terminal is starting}")
    assert len(deck.engine_pids()) == 1


def test_the_engine_holds_its_lock_before_it_imports_what_takes_seconds(deck: Deck) -> None:
    """So that a `slotdeck serve`, which nobody else watches, is known to be loading from its first moments."""
    code = (
        "import importlib.abc, os, sys\n"
        "from pathlib import Path\n"
        "from slotdeck.console.hosting.process import lock_holder\n"
        "class AtTorch(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'torch':\n"
        "            print(lock_holder(Path(os.environ['SLOTDECK_SOCKET'])) == os.getpid(), flush=True)\n"
        "            os._exit(9)\n"
        "sys.meta_path.insert(0, AtTorch())\n"
        "sys.argv = ['engine', 'serve']\n"
        "from slotdeck.engine.__main__ import main\n"
        "main()\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], env=deck.environment | {"SLOTDECK_PORT": "0"}, capture_output=True, text=True,
        timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert (result.stdout, result.returncode) == ("True\n", 9), result.stderr


def test_attach_waits_for_an_engine_that_then_does_not_come_up(deck: Deck) -> None:
    imported = deck.folder / "imported"
    starting = deck.terminal(FAKE_ENGINE=f"import {imported}")
    eventually(deck.engine_pids)
    attached = deck.terminal("attach")
    attached.expect_exact("waiting for an engine")
    os.kill(deck.engine_pids()[0], signal.SIGKILL)
    assert exit_code(starting) == 1
    attached.expect_exact("no engine runs on")
    assert exit_code(attached) == 4


def test_attach_needs_an_engine_and_a_terminal(deck: Deck) -> None:
    terminal = deck.terminal("attach")
    terminal.expect_exact("no engine runs on")
    assert exit_code(terminal) == 4
    result = deck.without_terminal("attach")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1
    assert "terminal" in result.stderr
