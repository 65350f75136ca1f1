"""Command line flags that are derived from the table of settings.

:func:`settings_flags` gives a command one flag for each setting, so that a new setting is a flag at once. Values stay
as they were typed; ``slotdeck.engine.configuration.load_settings`` checks them all in one place.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection
from typing import Annotated, Any

import typer

from slotdeck.console.cli.exits import USAGE, fail
from slotdeck.engine.configuration import load_settings
from slotdeck.engine.settings import SETTINGS, Setting, SettingsError, StartSettings

LIVE_PANEL = "Settings that also change live"
START_PANEL = "Settings read at start"
PREFIX = "setting_"  # Distinguishes a setting such as "context" from a command's own parameter of that name.


def settings_flags(
    names: Collection[str] = SETTINGS.keys(), defaults: dict[str, Any] | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator that replaces a command's parameter ``settings: dict[str, Any]`` by one flag for each name.

    The command gets only the values that were given. ``defaults`` are shown in the help instead of the usual defaults.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def wrapper(*arguments: Any, **options: Any) -> Any:
            given = {name: options.pop(PREFIX + name) for name in names}
            explicit = {name: _typed(SETTINGS[name], value) for name, value in given.items() if value}
            return command(*arguments, settings=explicit, **options)

        own = [
            parameter
            for parameter in inspect.signature(command, eval_str=True).parameters.values()
            if parameter.name != "settings"
        ]
        flags = [_parameter(SETTINGS[name], (defaults or {}).get(name)) for name in names]
        parameters = [*own, *flags]
        wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return wrapper

    return decorate


def check_settings(explicit: dict[str, Any]) -> StartSettings:
    """Load all settings; a bad one ends the command with one line and exit code 2."""
    try:
        return load_settings(explicit)
    except SettingsError as error:
        fail(str(error), USAGE)


def merge_flags(context: typer.Context, settings: dict[str, Any], names: Collection[str] = SETTINGS.keys()) -> Any:
    """Flags before the command (``slotdeck --slots 8 serve``) merged with those after it, which take precedence.

    A flag that the command does not support ends it with exit code 2.
    """
    before: dict[str, Any] = context.obj or {}
    for name in before:
        if name not in names:
            fail(f"{SETTINGS[name].flag} does not apply to `slotdeck {context.info_name}`; leave it out", USAGE)
    return before | settings


def setting_text(value: Any) -> str:
    """A value as people type it: ``on`` or ``off`` for a switch, numbers without trailing zeros."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _typed(setting: Setting, value: Any) -> Any:
    """Numbers are converted, so that an error message shows the number and not a quoted text."""
    if setting.minimum is None or not isinstance(value, str):
        return value
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value


def _parameter(setting: Setting, default: Any) -> inspect.Parameter:
    repeatable = isinstance(setting.default, list)
    option = typer.Option(
        setting.flag,
        help=_help(setting, default),
        metavar=_metavar(setting),
        show_default=False,
        rich_help_panel=LIVE_PANEL if setting.live else START_PANEL,
    )
    annotation = Annotated[list[str] | None if repeatable else str | None, option]  # type: ignore[valid-type]
    return inspect.Parameter(PREFIX + setting.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _metavar(setting: Setting) -> str:
    if setting.choices:
        return "|".join(setting.choices)
    if setting.minimum is not None:
        return "N"
    return "LABEL=KEY" if setting.name == "api_key" else "TEXT"


def _help(setting: Setting, default: Any) -> str:
    notes = []
    if setting.minimum is not None and setting.maximum is not None:
        unit = f" {setting.unit}" if setting.unit else ""
        notes.append(f"{setting.minimum:.15g} to {setting.maximum:.15g}{unit}")
    default = setting.default if default is None else default
    if default not in (None, []):
        notes.append(f"default {setting_text(default)}")
    return f"{setting.help} [{'; '.join(notes)}]" if notes else setting.help
