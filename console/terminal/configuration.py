"""The console's own settings: ``console.toml`` beside the engine's ``config.toml``. Nothing in it touches the engine.

    theme = "slotdeck-light"   rate = 2        ascii = true      mouse = true
    [keys]                     pause = "P"     load = ["L", "f5"]

A bad entry never stops the console: it is reported in one sentence, and the default is used.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slotdeck.engine.paths import config_file

MIN_RATE, MAX_RATE = 0.2, 4.0
"""Drawings per second."""


@dataclass(frozen=True)
class ConsoleConfiguration:
    """The contents of the file. ``problems`` has one sentence for each entry that cannot be used."""

    theme: str = ""
    rate: float = MAX_RATE
    ascii: bool | None = None
    """None: decided by the locale."""
    mouse: bool = False
    keys: dict[str, Any] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


def console_file() -> Path:
    """The path of ``console.toml``, in the folder of the engine's configuration file."""
    return config_file().with_name("console.toml")


def load_configuration() -> ConsoleConfiguration:
    """Read the file. Without a file all values are defaults."""
    path = console_file()
    if not path.is_file():
        return ConsoleConfiguration()
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        return ConsoleConfiguration(problems=(f"{path}: {error}",))
    kept: dict[str, Any] = {}
    problems: list[str] = []
    wanted: dict[str, tuple[type | tuple[type, ...], str]] = {
        "theme": (str, "the name of a theme"),
        "rate": ((int, float), f"a number from {MIN_RATE} to {MAX_RATE:g}"),
        "ascii": (bool, "true or false"),
        "mouse": (bool, "true or false"),
        "keys": (dict, "a table of actions and their keys"),
    }
    for name, value in document.items():
        if name not in wanted:
            problems.append(f"{path.name}: {name!r} is unknown; known are {', '.join(wanted)}")
            continue
        kind, words = wanted[name]
        fine = isinstance(value, kind) and isinstance(value, bool) == (kind is bool)
        if not fine or (isinstance(value, int | float) and name == "rate" and not MIN_RATE <= value <= MAX_RATE):
            problems.append(f"{path.name}: {name} must be {words}")
        else:
            kept[name] = value
    return ConsoleConfiguration(**kept, problems=tuple(problems))
