"""Reads settings from the command line, the environment and the TOML file, and explains what is wrong with them."""

from __future__ import annotations

import os
import tomllib
from typing import Any

from pydantic import ValidationError

from slotdeck.engine.paths import CONFIG_VARIABLE, config_file
from slotdeck.engine.settings import SETTINGS, SettingsError, StartSettings


def load_settings(command_line: dict[str, Any] | None = None) -> StartSettings:
    """Merge command line > ``SLOTDECK_*`` > TOML > defaults.

    Raises SettingsError naming the setting, where the value came from and what is allowed.
    """
    values: dict[str, Any] = {}
    origin: dict[str, str] = {}
    path = config_file()
    if path.is_file():
        try:
            document = tomllib.loads(path.read_text("utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise SettingsError(f"{path}: {error}") from error
        unknown = sorted(set(document) - set(SETTINGS))
        if unknown:
            raise SettingsError(f"{path}: unknown setting {unknown[0]!r}; known are {', '.join(SETTINGS)}")
        values |= document
        origin |= {name: f"{name} in {path}" for name in document}
    elif os.environ.get(CONFIG_VARIABLE):
        raise SettingsError(f"{path}: named by SLOTDECK_CONFIG, but there is no such file")
    for name, setting in SETTINGS.items():
        if setting.variable in os.environ:
            values[name], origin[name] = os.environ[setting.variable], setting.variable
    for name, value in (command_line or {}).items():
        if value is not None and value != []:
            values[name], origin[name] = value, SETTINGS[name].flag
    try:
        return StartSettings.model_validate(values)
    except ValidationError as error:
        raise SettingsError("; ".join(describe_error(item, origin) for item in error.errors())) from error


def describe_error(error: Any, origin: dict[str, str] | None = None) -> str:
    """One sentence for one pydantic error about a setting: which one, what is wrong, what is allowed."""
    name = str(error["loc"][0]) if error["loc"] else ""
    label = (origin or {}).get(name, name)
    setting = SETTINGS.get(name)
    given = error.get("input")
    if setting is None:
        return f"{label}: unknown setting; known are {', '.join(SETTINGS)}"
    if error["type"] in ("greater_than_equal", "less_than_equal"):
        unit = f" {setting.unit}" if setting.unit else ""
        return f"{label} must be between {setting.minimum} and {setting.maximum}{unit}, not {given!r}"
    message = str(error["msg"]).removeprefix("Value error, ")
    if error["type"] in ("int_parsing", "int_type", "int_from_float"):
        message = "give a whole number" + (", or a size such as 500MB or 2GiB" if setting.unit == "bytes" else "")
    return f"{label}: {message} (got {given!r})" if name != "api_key" else f"{label}: {message}"


def to_environment(values: dict[str, Any]) -> dict[str, str]:
    """Settings as ``SLOTDECK_*`` variables, to hand explicit command line values to the engine process.

    Variables, unlike arguments, are not readable by other users, which matters for API keys.
    """
    return {
        SETTINGS[name].variable: ",".join(value) if isinstance(value, list) else str(value)
        for name, value in values.items()
        if value is not None and value != []
    }
