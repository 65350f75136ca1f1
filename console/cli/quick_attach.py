"""Opens the console on an engine that is already running, without importing the command line.

People type `slotdeck` and `slotdeck attach` many times a day over slow connections. Importing flags, settings and
frames takes longer than Textual needs to start, so the console opens first if none of them matter. Everything else is
left to the commands, which report what is wrong.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from slotdeck.console.cli.show_console import show_console
from slotdeck.console.client.admin import AdminClient, AdminError, NoEngineError
from slotdeck.console.hosting.hosted_engine import found_notice, is_hosted
from slotdeck.console.terminal.environment import ASCII_VARIABLE, terminal_problem
from slotdeck.engine.paths import CACHE_VARIABLE, ENVIRONMENT_PREFIX, config_file, default_socket

HARMLESS = {ASCII_VARIABLE, CACHE_VARIABLE}
"""Environment variables that are not settings."""


def quick_attach(arguments: list[str]) -> int | None:
    """The console's exit code, or ``None`` if nothing was done and the commands must handle the command line."""
    socket = _socket(arguments)
    settings_given = any(name.startswith(ENVIRONMENT_PREFIX) and name not in HARMLESS for name in os.environ)
    if socket is None or settings_given or config_file().exists() or terminal_problem() is not None:
        return None
    try:
        frame = AdminClient(socket).call("GET", "/admin/frame")
    except (NoEngineError, AdminError):
        return None
    if not _is_frame(frame) or frame["health"] == "draining":
        return None
    boot_id = frame["boot_id"]
    notice = found_notice(frame.get("uptime"), frame["engine"].get("pid"), frame["time"])
    hosted = not arguments and is_hosted(socket, boot_id)
    return show_console(socket, boot_id, hosted=hosted, notices=[notice])


def _socket(arguments: list[str]) -> Path | None:
    """The engine's socket; ``None`` if the command line says anything else."""
    match arguments:
        case [] | ["attach"]:
            return default_socket()
        case ["attach", "--socket", path] if not path.startswith("-"):
            return Path(path)
    return None


def _is_frame(document: Any) -> bool:
    """True if the frame has the fields that are read here. The console itself validates all of it."""
    return (
        isinstance(document, dict)
        and isinstance(document.get("boot_id"), str)
        and isinstance(document.get("health"), str)
        and isinstance(document.get("engine"), dict)
        and isinstance(document.get("time"), float)
    )
