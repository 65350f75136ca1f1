"""What a live setting can be, how a key steps it, and how its value is written.

Everything comes from the engine's table of settings (:data:`slotdeck.engine.settings.SETTINGS`). Pure.
"""

from __future__ import annotations

from slotdeck.console.drawing.cells import UNKNOWN, clean
from slotdeck.console.drawing.formats import binary_bytes
from slotdeck.engine.settings import SETTINGS
from slotdeck.engine.telemetry.frame import Bounds, LimitInfo

Value = int | str | bool
"""The value of a live setting: a number, one of its choices, or on and off."""

LIVE_SETTINGS = tuple(name for name, setting in SETTINGS.items() if setting.live)
"""Names of the settings that can change while requests run, in the order of the engine's table."""


def choices(name: str) -> tuple[Value, ...]:
    """All values of the setting, in the order in which + steps through them; empty if it is a number."""
    setting = SETTINGS[name]
    if isinstance(setting.default, bool):
        return (False, True)
    return tuple(setting.choices)


def bounds(name: str, limits: LimitInfo | None = None) -> Bounds:
    """The smallest and largest value of a number.

    They are what the engine reports for its model and pool, else the range in the table of settings.
    """
    if limits is not None and name in limits.bounds:
        return limits.bounds[name]
    setting = SETTINGS[name]
    return Bounds(least=int(setting.minimum or 0), most=int(setting.maximum or 10**9))


def shown(name: str, value: object) -> str:
    """A value as the status line writes it: without a unit, except that bytes have theirs."""
    if value is None:
        return UNKNOWN
    if isinstance(value, bool):
        return "on" if value else "off"
    if SETTINGS[name].unit == "bytes" and isinstance(value, int):
        return binary_bytes(value)
    return clean(f"{value:g}" if isinstance(value, float) else str(value))


def allowed_values(name: str, within: Bounds | None = None) -> str:
    """The values that the setting can have, in words."""
    if values := choices(name):
        return ", ".join(shown(name, value) for value in values)
    within = within or bounds(name)
    if SETTINGS[name].unit == "bytes":
        return f"{shown(name, within.least)} to {shown(name, within.most)}"
    return f"{within.least} to {within.most} {SETTINGS[name].unit}".rstrip()


def stepped(name: str, value: Value, direction: int, within: Bounds | None = None) -> Value:
    """The next value up (``direction`` 1) or down (-1), inside the bounds. Choices wrap around."""
    if values := choices(name):
        at = values.index(value) if value in values else 0
        return values[(at + direction) % len(values)]
    assert isinstance(value, int)
    value = SETTINGS[name].step.move(value, direction)
    within = within or bounds(name)
    return min(within.most, max(within.least, value))


def describe_change(name: str, before: object, after: object) -> str:
    """A change of one setting as every line writes it: ``slots 4→8``."""
    return f"{name} {shown(name, before)}→{shown(name, after)}"
