"""A setting that is being edited, and changes of one or more settings. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from slotdeck.console.drawing.cells import clean
from slotdeck.console.settings.values import Value, bounds, choices, describe_change, shown
from slotdeck.engine.settings import SETTINGS
from slotdeck.engine.telemetry.frame import Bounds, LimitInfo


@dataclass(frozen=True)
class Edit:
    """A setting that is being edited."""

    name: str
    before: Value
    """The value in force."""
    value: Value
    """The value that would be applied now."""
    within: Bounds
    digits: str = ""
    """The digits that were typed; empty if ``value`` was reached in steps."""

    @property
    def problem(self) -> str | None:
        """Why the value cannot be applied, with the allowed range; ``None`` if it can."""
        if choices(self.name):
            return None
        within, table = self.within, bounds(self.name)
        if isinstance(self.value, int) and within.least <= self.value <= within.most:
            return None
        narrowed = isinstance(self.value, int) and table.least <= self.value <= table.most
        why = f": {clean(within.why)}" if within.why and narrowed else ""
        if SETTINGS[self.name].unit == "bytes":
            return (
                f"{self.name} must be between {shown(self.name, within.least)} and {shown(self.name, within.most)}{why}"
            )
        unit = SETTINGS[self.name].unit
        return f"{self.name} must be between {within.least} and {within.most} {unit}".rstrip() + why

    @property
    def description(self) -> str:
        """``slots 4→8``."""
        return describe_change(self.name, self.before, self.value)


@dataclass(frozen=True)
class SettingChange:
    """One setting changed from one value to another."""

    name: str
    before: Value
    after: Value


def setting_changes(values: Mapping[str, Value], limits: LimitInfo) -> tuple[SettingChange, ...]:
    """The changes that lead from the settings in force to ``values``.

    Settings that have their value already, or whose value in force is unknown, are left out.
    """
    result = []
    for name, after in values.items():
        before = value_in_force(limits, name)
        if before is not None and before != after:
            result.append(SettingChange(name, before, after))
    return tuple(result)


def value_in_force(limits: LimitInfo, name: str) -> Value | None:
    """The value of a setting in force. For the mode it is the one that was last asked for, even while others drain."""
    value: Value | None = limits.next_mode or limits.mode if name == "mode" else getattr(limits, name, None)
    return value


@dataclass(frozen=True)
class ChangeRequest:
    """A change of one or more settings as it is sent to the engine, which applies all of it or nothing."""

    changes: tuple[SettingChange, ...]
    undo: bool = False
    """It takes an earlier change back."""
    revision: int | None = None
    """Revision of the settings after the change; ``None`` until the engine has answered."""
    base: int = 0
    """Revision of the settings that the change was sent against."""
    unanswered: bool = False
    """The engine never answered, so the change may or may not be in force."""

    @property
    def values(self) -> dict[str, Value]:
        """The new values by name, as the admin API takes them."""
        return {change.name: change.after for change in self.changes}

    @property
    def description(self) -> str:
        """``slots 4→8, queue 16→4``."""
        return ", ".join(describe_change(one.name, one.before, one.after) for one in self.changes)

    @property
    def outcome(self) -> str:
        """The message once the change is in force."""
        return f"{self.description} {'taken back' if self.undo else 'in force'}"

    def reversed(self) -> ChangeRequest:
        """The request that takes this one back.

        It is sent against this change's revision, so the engine refuses it if anybody changed a setting since.
        """
        back = tuple(SettingChange(one.name, one.after, one.before) for one in self.changes)
        return ChangeRequest(back, undo=True, base=self.revision or 0)
