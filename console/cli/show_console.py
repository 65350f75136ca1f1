"""Runs the console on an engine that answers.

This module imports neither typer nor pydantic: the console is painted before settings and frames are imported.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from slotdeck.console.cli.supervise import supervise
from slotdeck.console.hosting.hosted_engine import engine_log, is_hosted
from slotdeck.console.hosting.process import record_end
from slotdeck.console.terminal.startup import stop_collecting


def show_console(socket: Path, boot_id: str, *, hosted: bool, notices: list[str]) -> int:
    """Run the console on the engine ``boot_id`` behind ``socket`` until the user leaves; return the exit code."""
    log = engine_log() if is_hosted(socket, boot_id) else None

    def console() -> int:
        stop_collecting()
        from slotdeck.console.app import run_console
        from slotdeck.console.sources.engine import EngineSource

        return run_console(EngineSource(socket, log=log), hosted=hosted, socket=socket, notices=notices)

    return supervise(console, on_other_end=partial(record_end, socket))
