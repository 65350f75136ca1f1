"""The panel of all settings that change while people stream: value in force, what is allowed, what it is for."""

from __future__ import annotations

from console.knobs import LIVE_SETTINGS, Edit, allowed, bounds, shown
from console.widgets.cells import UNKNOWN, Line, Span, exact, left, right
from engine.settings import SETTINGS
from engine.telemetry.frame import LimitInfo

NAME_CELLS = 16
VALUE_CELLS = 12
_UNITS = {"tokens": "tok", "milliseconds": "ms"}
"""Units that are written; the number of requests needs none, and bytes carry theirs."""


def settings_panel(limits: LimitInfo, edit: Edit | None, place: int, *, cells: int, rows: int) -> list[Line]:
    """A heading and one line for each live setting, at most ``rows`` rows; ``place`` is selected and in sight.

    A knob in hand shows its new value.
    """
    keys: list[Span] = [("enter", "key"), (" takes one in hand  ", "label"), ("esc", "key"), (" closes", "label")]
    room = max(1, rows - 1)
    first = max(0, min(place - room // 2, len(LIVE_SETTINGS) - room))
    number = len(LIVE_SETTINGS)
    part = f"{first + 1}-{first + room} of {number}" if room < number else f"all {number}"
    lines = [exact([("─ settings ", "title"), (f" {part}   j k move  ", "label"), *keys], cells)]
    for number, name in list(enumerate(LIVE_SETTINGS))[first : first + room]:
        setting = SETTINGS[name]
        in_hand = edit is not None and edit.name == name
        value = edit.value if edit is not None and in_hand else getattr(limits, name, None)
        text = shown(name, value)
        style = "key" if in_hand else "label" if text == UNKNOWN else "value"
        unit = "" if text == UNKNOWN else _UNITS.get(setting.unit, "")
        lines.append(
            exact(
                [
                    (" › " if number == place else "   ", "key"),
                    (f"{setting.key or ' '} ", "key"),
                    (left(name, NAME_CELLS), "title" if number == place else "text"),
                    (right(text, VALUE_CELLS), style),
                    (f" {left(unit, 5)}", "label"),
                    (_detail(name, limits, cells - NAME_CELLS - VALUE_CELLS - 11), "label"),
                ],
                cells,
            )
        )
    return lines


def _detail(name: str, limits: LimitInfo, cells: int) -> str:
    """What it is for and what is allowed, if there is room for both; else what it is for."""
    help_text, range_text = SETTINGS[name].help, allowed(name, bounds(name, limits))
    return f"{help_text} ({range_text})" if len(help_text) + len(range_text) + 3 <= cells else help_text
