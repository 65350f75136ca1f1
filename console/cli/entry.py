"""The installed command `slotdeck`. It does as little as possible before importing the rest."""

from __future__ import annotations

import sys

from slotdeck.console.terminal.startup import collect_again, skip_plugins, stop_collecting


def run() -> None:
    """Open the console on the running engine if possible, else run the command line."""
    stop_collecting()
    skip_plugins()
    from slotdeck.console.cli.quick_attach import quick_attach

    if (code := quick_attach(sys.argv[1:])) is not None:
        sys.exit(code)
    from slotdeck.console.cli.main import run as run_command

    collect_again()
    run_command()
