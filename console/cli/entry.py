"""The installed command `slotdeck`: as little as possible before the rest is imported."""

from __future__ import annotations

import sys

from slotdeck.console.terminal.startup import collect_again, skip_plugins, stop_collecting


def run() -> None:
    """The console on the engine that runs, or else the command that was asked for."""
    stop_collecting()
    skip_plugins()
    from slotdeck.console.cli.quick_attach import quick_attach

    if (code := quick_attach(sys.argv[1:])) is not None:
        sys.exit(code)
    from slotdeck.console.cli.main import run as run_command

    collect_again()
    run_command()
