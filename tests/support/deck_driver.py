"""Runs `slotdeck` with the fake engine and a fake console; ``FAKE_CONSOLE`` says what the console does."""

from __future__ import annotations

import os
import signal
import sys
import threading
import types
from pathlib import Path

from slotdeck.console.cli import entry, main
from slotdeck.console.cli import start_or_attach as hosting
from slotdeck.console.hosting import engine_process

COMMAND = (sys.executable, "-m", "tests.support.fake_engine")
ways = ["quick"]
"""How the console was opened: by the quick way of attaching, or by the whole command line."""


def _tell_continued() -> None:
    while True:
        signal.sigwait({signal.SIGCONT})
        print("CONTINUED", flush=True)


def run_console(source: object, *, hosted: bool, socket: Path, notices: list[str]) -> int:
    """Print the arguments of the real ``run_console``, then wait for a line that starts with ``quit``."""
    # Alternate screen, hidden cursor and mouse reports, as a real screen would have.
    print("\x1b[?1049h\x1b[?25l\x1b[?1006h", end="")
    # Python runs a signal handler only when it interrupts a read. A process stopped just before the read would miss it.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCONT})
    threading.Thread(target=_tell_continued, daemon=True).start()
    told = f"hosted={hosted} socket={socket} notices={notices}"
    print(f"CONSOLE pid={os.getpid()} {told} way={ways[-1]}", flush=True)
    if os.environ.get("FAKE_CONSOLE") == "raise":
        raise RuntimeError("a fault of the screen")
    while True:
        line = sys.stdin.readline().strip()
        if line.startswith("quit"):
            print("\x1b[?1049l\x1b[?25h\x1b[?1006l", end="", flush=True)
            return int(line.partition(" ")[2] or 0)


def install() -> None:
    hosting.ENGINE_COMMAND = engine_process.ENGINE_COMMAND = COMMAND
    app, source = types.ModuleType("slotdeck.console.app"), types.ModuleType("slotdeck.console.sources.engine")
    app.run_console = run_console  # type: ignore[attr-defined]
    source.EngineSource = lambda socket, **_: socket  # type: ignore[attr-defined]
    sys.modules |= {"slotdeck.console.app": app, "slotdeck.console.sources.engine": source}
    commands = main.run

    def run_commands() -> None:
        ways.append("commands")
        commands()

    main.run = run_commands


if __name__ == "__main__":
    sys.argv[0] = "slotdeck"
    install()
    entry.run()
