"""An engine of one's own for a measurement: it shares nothing with the engine of the user."""

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
"""Settings of the user's own engine that a private one on loopback must not take over."""


@contextmanager
def private_engine(settings: StartSettings, say: Callable[[str], None]) -> Iterator[tuple[AdminClient, Frame]]:
    """An engine on a free loopback port with an admin socket of its own, stopped at the end.

    It takes ``settings`` but for what concerns the user's own engine, reads neither configuration nor variables of
    the user, and records no history. Raises EngineExitedError when it does not come up.
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
    """A SIGTERM ends this process as an exception would, so that the engine, which lives in a session of its own, is
    not left behind. Signals are the main thread's alone."""
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
