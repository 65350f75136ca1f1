"""The panel of all settings that change while people stream: value in force, what is allowed, what it is for."""

from __future__ import annotations

from slotdeck.console.drawing.cells import UNKNOWN, Line, Span, exact, left, right, width, wrap
from slotdeck.console.drawing.scrolling import visible_from
from slotdeck.console.keys.actions import SETTING_KEYS
from slotdeck.console.settings.changes import Edit
from slotdeck.console.settings.values import LIVE_SETTINGS, allowed_values, bounds, shown
from slotdeck.engine.settings import SETTINGS
from slotdeck.engine.telemetry.frame import LimitInfo

NAME_CELLS = 16
VALUE_CELLS = 12
MAX_ROWS_BELOW, MIN_ROWS = 3, 4
"""Rows for the selected setting's whole sentence, and rows of the list below which it has none."""
_UNITS = {"tokens": "tok", "milliseconds": "ms"}
"""Units that are written; the number of requests needs none, and bytes carry theirs."""


def settings_panel(limits: LimitInfo, edit: Edit | None, place: int, *, cells: int, rows: int) -> list[Line]:
    """A heading and one line for each live setting, at most ``rows`` rows; ``place`` is selected and in sight.

    A knob in hand shows its new value. Where lines are too short for what a setting is for, the last rows say it of the
    selected one.
    """
    beside = cells - NAME_CELLS - VALUE_CELLS - 11
    whole = [_whole(name, limits) for name in LIVE_SETTINGS]
    below = max((len(wrap(text, cells - 8, MAX_ROWS_BELOW)) for text in whole if width(text) > beside), default=0)
    if rows - 1 - below < MIN_ROWS:
        below = 0
    keys: list[Span] = [("enter", "key"), (" takes one in hand  ", "label"), ("esc", "key"), (" closes", "label")]
    room = max(1, rows - 1 - below)
    first = visible_from(place - room // 2, len(LIVE_SETTINGS), room)
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
                    (f"{SETTING_KEYS.get(name, ' ')} ", "key"),
                    (left(name, NAME_CELLS), "title" if number == place else "text"),
                    (right(text, VALUE_CELLS), style),
                    (f" {left(unit, 5)}", "label"),
                    (whole[number] if width(whole[number]) <= beside else setting.help, "label"),
                ],
                cells,
            )
        )
    if below:
        said = wrap(whole[place], cells - 8, below)
        lines += [exact([(f"     {text}", "text")], cells) for text in [*said, *[""] * (below - len(said))]]
    return lines


def _whole(name: str, limits: LimitInfo) -> str:
    """What it is for and what is allowed."""
    return f"{SETTINGS[name].help} ({allowed_values(name, bounds(name, limits))})"
