"""A private engine for a measurement. It shares nothing with the user's own engine."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from slotdeck.console.client.admin import AdminClient
from slotdeck.console.hosting.engine_process import EngineProcess
from slotdeck.engine.configuration import to_environment
from slotdeck.engine.paths import CONFIG_VARIABLE
from slotdeck.engine.settings import SETTINGS, StartSettings
from slotdeck.engine.telemetry.frame import Frame

NOT_OURS = ("host", "port", "socket", "api_key", "api_key_file", "allowed_host")
"""Settings that a private engine does not take over from the user's settings."""


@contextmanager
def private_engine(settings: StartSettings, say: Callable[[str], None]) -> Iterator[tuple[AdminClient, Frame]]:
    """Start an engine on a free loopback port with its own admin socket, and stop it at the end.

    It gets ``settings`` except for :data:`NOT_OURS`. It reads neither the user's configuration nor environment
    variables, and records no history. ``say`` gets its progress. Raises EngineExitedError if it does not start.
    """
    with tempfile.TemporaryDirectory(prefix="slotdeck-bench-") as name:
        folder = Path(name)
        (folder / "config.toml").touch()
        admin = AdminClient(folder / "engine.sock", timeout=30)
        values = {key: value for key, value in settings.model_dump().items() if key not in NOT_OURS}
        values |= {"host": "127.0.0.1", "port": 0, "socket": admin.path, "history_days": 0}
        variables = {setting.variable for setting in SETTINGS.values()}
        environment = {key: value for key, value in os.environ.items() if key not in variables}
        environment |= to_environment(values) | {CONFIG_VARIABLE: str(folder / "config.toml")}
        engine = EngineProcess(environment, folder / "engine.log")
        last = ""

        def on_progress(text: str) -> None:
            nonlocal last
            if text != last:
                last = text
                say(text)

        try:
            with _ended_in_order():
                yield admin, engine.wait_until_serving(admin, on_progress)
        finally:
            engine.stop()


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """Turn a SIGTERM into SystemExit, so that the engine, which lives in its own session, is not left behind.

    Only the main thread may handle signals; another thread changes nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
