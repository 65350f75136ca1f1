"""Themes from TOML: the fields of a Textual theme plus the colours of slot states and levels.

Shipped ones lie in ``themes/``, the user's in the data folder. A broken file never stops the console: it becomes one
sentence to show. Colour only supports what a word says already, so every style also works without any.
"""

from __future__ import annotations

import dataclasses
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs
from rich.style import Style
from textual.color import Color, ColorParseError
from textual.theme import Theme

from slotdeck.engine.paths import APP_NAME

SLOT_STATES = ("idle", "prefill", "decode", "held", "preempted", "swapped")
LEVELS = ("ok", "warn", "critical")
STYLE_NAMES = (
    *("text", "label", "value", "title", "key", "rule", "banner", "alert", "live", "cached", "free"),
    *SLOT_STATES,
    *LEVELS,
)
"""All styles that a span may name."""

_TEXT_STYLES = ("none", "bold", "dim", "italic", "reverse", "strike", "underline")
_ANSI_VARIABLES = {"ansi-background": "ansi_default", "ansi-foreground": "ansi_default"}
"""Textual's own style sheets need these variables under a theme of ANSI colours."""

SHIPPED = Path(__file__).parents[2] / "themes"
DEFAULT, DEFAULT_ANSI = "slotdeck-dark", "slotdeck-ansi"


class ThemeError(ValueError):
    """A theme file cannot be used. The message names the file and what is wrong."""


@dataclass(frozen=True)
class ConsoleTheme:
    """A Textual theme and the rich styles of all span names."""

    theme: Theme
    styles: dict[str, Style]
    dimmed: Style
    """For everything on a screen that is out of date."""


def user_folder() -> Path:
    """The folder with the user's own themes."""
    return platformdirs.user_data_path(APP_NAME) / "themes"


def load_themes() -> tuple[dict[str, ConsoleTheme], list[str]]:
    """Shipped and user themes by name, the default first, and one sentence for each broken file."""
    found: dict[str, ConsoleTheme] = {}
    problems: list[str] = []
    paths = sorted(SHIPPED.glob("*.toml"))
    if user_folder().is_dir():
        paths += sorted(user_folder().glob("*.toml"))
    for path in paths:
        try:
            theme = read_theme(path)
        except ThemeError as error:
            problems.append(str(error))
        else:
            found[theme.theme.name] = theme
    order = sorted(found, key=lambda name: (name != DEFAULT, name))
    return {name: found[name] for name in order}, problems


def read_theme(path: Path) -> ConsoleTheme:
    """One theme file. Raises ThemeError."""
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ThemeError(f"theme {path.name}: {error}") from error
    try:
        return _build(document)
    except (ColorParseError, ValueError, TypeError) as error:
        raise ThemeError(f"theme {path.name}: {error}") from error


def _build(document: dict[str, Any]) -> ConsoleTheme:
    slots = _colours("slots", document.pop("slots", {}), SLOT_STATES)
    levels = _colours("levels", document.pop("levels", {}), LEVELS)
    known = {field.name for field in dataclasses.fields(Theme)}
    for name, value in document.items():
        if name not in known:
            raise ValueError(f"unknown field {name!r}")
        expected: type | tuple[type, ...] = {
            "dark": bool, "ansi": bool, "variables": dict, "luminosity_spread": float, "text_alpha": float
        }.get(name, str)  # fmt: skip
        if not isinstance(value, expected):
            raise ValueError(f"{name} has a value of the wrong type")
    for name in ("name", "primary", "foreground", "background"):
        if name not in document:
            raise ValueError(f"{name} is missing")
    theme = Theme(**document)
    for name, value in theme.variables.items():
        if not isinstance(value, str) or (value not in _TEXT_STYLES and not _is_colour(value)):
            raise ValueError(f"variables.{name}: {value!r} is neither a colour nor a text style")
    if theme.ansi:
        theme.variables = _ANSI_VARIABLES | theme.variables
    for name in ("primary", "secondary", "warning", "error", "success", "accent", "surface", "panel"):
        if (value := getattr(theme, name)) is not None:
            _parse(name, value)
    return ConsoleTheme(theme, *_styles(theme, slots | levels))


def _is_colour(value: str) -> bool:
    try:
        Color.parse(value.rpartition(" ")[0] if value.endswith("%") else value)
    except ColorParseError:
        return False
    return True


def _parse(name: str, value: Any) -> Color:
    if not isinstance(value, str):
        raise ValueError(f"{name} must be a colour")
    try:
        return Color.parse(value)
    except ColorParseError as error:
        raise ValueError(f"{name}: {value!r} is not a colour") from error


def _colours(table: str, values: Any, names: tuple[str, ...]) -> dict[str, Color]:
    if not isinstance(values, dict) or set(values) != set(names):
        raise ValueError(f"[{table}] needs exactly {', '.join(names)}")
    return {name: _parse(f"{table}.{name}", value) for name, value in values.items()}


def _styles(theme: Theme, colours: dict[str, Color]) -> tuple[dict[str, Style], Style]:
    foreground = _parse("foreground", theme.foreground)
    background = _parse("background", theme.background)
    accent = _parse("accent", theme.accent or theme.primary)
    ground = background.rich_color

    def style(colour: Color, *, bold: bool = False, dim: bool = False, reverse: bool = False) -> Style:
        return Style(color=colour.rich_color, bgcolor=ground, bold=bold, dim=dim, reverse=reverse)

    def toned(part: float) -> Style:
        """Less prominent text. The ANSI palette has no tones in between, so the terminal dims it."""
        return style(foreground, dim=True) if theme.ansi else style(background.blend(foreground, part))

    styles = {
        "text": style(foreground),
        "label": toned(0.68),
        "value": style(foreground, bold=True),
        "title": style(accent, bold=True),
        "key": style(accent, bold=True),
        "rule": toned(0.3),
        "banner": style(accent, bold=True, reverse=True),
        "alert": style(colours["critical"], bold=True, reverse=True),
        "live": style(colours["decode"]),
        "cached": style(colours["prefill"]),
        "free": toned(0.35),
    }
    styles |= {name: style(colour, bold=name in ("preempted", "critical")) for name, colour in colours.items()}
    return styles, toned(0.5)
