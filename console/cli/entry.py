"""The installed command `slotdeck`: as little as possible before the rest is imported."""

from __future__ import annotations

from console.quick import collect_again, skip_plugins, stop_collecting


def run() -> None:
    """Import the commands, then run the one that was asked for."""
    stop_collecting()
    skip_plugins()
    from console.cli.main import run as run_command

    collect_again()
    run_command()
