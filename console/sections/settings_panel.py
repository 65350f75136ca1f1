"""The panel of all live settings: the value in force, what is allowed, and what each is for."""

from __future__ import annotations

from slotdeck.console.drawing.cells import UNKNOWN, Line, Span, cell_width, exact, left, right, wrap
from slotdeck.console.drawing.scrolling import visible_from
from slotdeck.console.keys.actions import SETTING_KEYS
from slotdeck.console.settings.changes import Edit
from slotdeck.console.settings.values import LIVE_SETTINGS, allowed_values, bounds, shown
from slotdeck.engine.settings import SETTINGS
from slotdeck.engine.telemetry.frame import LimitInfo

NAME_CELLS = 16
VALUE_CELLS = 12
MAX_ROWS_BELOW, MIN_ROWS = 3, 4
"""Rows for the full sentence about the selected setting, and rows that the list must keep for that."""
_UNITS = {"tokens": "tok", "milliseconds": "ms"}
"""Units that are written. The number of requests needs none, and bytes have theirs already."""


def settings_panel(limits: LimitInfo, edit: Edit | None, place: int, *, width: int, height: int) -> list[Line]:
    """A heading and one line for each live setting, at most ``height`` rows. The setting at ``place`` is selected.

    A setting that is being edited shows its new value. If the lines are too short for what the settings are for, the
    last rows say it about the selected one.
    """
    beside = width - NAME_CELLS - VALUE_CELLS - 11
    whole = [_whole(name, limits) for name in LIVE_SETTINGS]
    below = max((len(wrap(text, width - 8, MAX_ROWS_BELOW)) for text in whole if cell_width(text) > beside), default=0)
    if height - 1 - below < MIN_ROWS:
        below = 0
    keys: list[Span] = [("enter", "key"), (" edits one  ", "label"), ("esc", "key"), (" closes", "label")]
    room = max(1, height - 1 - below)
    first = visible_from(place - room // 2, len(LIVE_SETTINGS), room)
    number = len(LIVE_SETTINGS)
    part = f"{first + 1}-{first + room} of {number}" if room < number else f"all {number}"
    lines = [exact([("─ settings ", "title"), (f" {part}   j k move  ", "label"), *keys], width)]
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
                    (whole[number] if cell_width(whole[number]) <= beside else setting.help, "label"),
                ],
                width,
            )
        )
    if below:
        said = wrap(whole[place], width - 8, below)
        lines += [exact([(f"     {text}", "text")], width) for text in [*said, *[""] * (below - len(said))]]
    return lines


def _whole(name: str, limits: LimitInfo) -> str:
    """What the setting is for and which values are allowed."""
    return f"{SETTINGS[name].help} ({allowed_values(name, bounds(name, limits))})"
