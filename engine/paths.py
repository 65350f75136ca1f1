"""Paths of files, as XDG defines them. Apart from the settings, so that a path is known before they are loaded."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

APP_NAME = "slotdeck"
ENVIRONMENT_PREFIX = "SLOTDECK_"
CONFIG_VARIABLE = ENVIRONMENT_PREFIX + "CONFIG"
CACHE_VARIABLE = ENVIRONMENT_PREFIX + "CACHE"


def config_file() -> Path:
    """The TOML file in effect: ``SLOTDECK_CONFIG``, else ``config.toml`` in the user's configuration folder."""
    named = os.environ.get(CONFIG_VARIABLE)
    return Path(named) if named else platformdirs.user_config_path(APP_NAME) / "config.toml"


def cache_folder() -> Path:
    """The folder of fetched models and converted tokenizers; ``SLOTDECK_CACHE`` moves it."""
    named = os.environ.get(CACHE_VARIABLE)
    return Path(named) if named else platformdirs.user_cache_path(APP_NAME)


def state_folder() -> Path:
    """The folder of logs and of the history."""
    return platformdirs.user_state_path(APP_NAME)


def history_path() -> Path:
    """The file in which this user's engine records its history."""
    return state_folder() / "history.db"


def default_socket() -> Path:
    """The admin socket of this user's engine: in the runtime folder, else in the state folder.

    It is never in a shared ``/tmp``, where another user could create it first.
    """
    named = os.environ.get("XDG_RUNTIME_DIR")
    runtime = Path(named) if named else Path(f"/run/user/{os.getuid()}")
    folder = runtime / APP_NAME if named or os.access(runtime, os.W_OK) else state_folder()
    return folder / "engine.sock"
