"""Turning a knob: the value being chosen, the change under way, and what can be taken back.

Pure state. The app sends what :meth:`Knobs.apply` returns and reports the answer; frames confirm it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from slotdeck.console.drawing.cells import UNKNOWN, clean
from slotdeck.console.drawing.formats import binary_bytes
from slotdeck.console.sources.base import Answer
from slotdeck.engine.settings import SETTINGS
from slotdeck.engine.telemetry.frame import Bounds, Frame, LimitInfo

Value = int | str | bool
"""Of a live setting: a number, one of its choices, or on and off."""

LIVE_SETTINGS = tuple(name for name, setting in SETTINGS.items() if setting.live)
"""Names of all settings that change while people stream."""

NOT_CONNECTED = "no engine is connected, so nothing can be changed"

SETTLED_AFTER = 5.0
"""Seconds of frames without a sign of a change that was never answered, after which it counts as not applied."""


def choices(name: str) -> tuple[Value, ...]:
    """What the setting can be, in the order in which a knob turns; none if it is a number."""
    setting = SETTINGS[name]
    if isinstance(setting.default, bool):
        return (False, True)
    return tuple(setting.choices)


def bounds(name: str, limits: LimitInfo | None = None) -> Bounds:
    """Smallest and largest value of a number: what the engine says of its model and pool, else the table's range."""
    if limits is not None and name in limits.bounds:
        return limits.bounds[name]
    setting = SETTINGS[name]
    return Bounds(least=int(setting.minimum or 0), most=int(setting.maximum or 10**9))


def shown(name: str, value: object) -> str:
    """A value as the status line writes it, without its unit, except that bytes carry theirs."""
    if value is None:
        return UNKNOWN
    if isinstance(value, bool):
        return "on" if value else "off"
    if SETTINGS[name].unit == "bytes" and isinstance(value, int):
        return binary_bytes(value)
    return clean(f"{value:g}" if isinstance(value, float) else str(value))


def allowed(name: str, within: Bounds | None = None) -> str:
    """What the setting can be, in words."""
    if values := choices(name):
        return ", ".join(shown(name, value) for value in values)
    within = within or bounds(name)
    if SETTINGS[name].unit == "bytes":
        return f"{shown(name, within.least)} to {shown(name, within.most)}"
    return f"{within.least} to {within.most} {SETTINGS[name].unit}".rstrip()


def stepped(name: str, value: Value, direction: int, within: Bounds | None = None) -> Value:
    """The next value up (1) or down (-1) in steps fit for the setting, inside its bounds; choices go round."""
    if values := choices(name):
        at = values.index(value) if value in values else 0
        return values[(at + direction) % len(values)]
    assert isinstance(value, int)
    value = SETTINGS[name].step.move(value, direction)
    within = within or bounds(name)
    return min(within.most, max(within.least, value))


@dataclass(frozen=True)
class Edit:
    """A knob in hand: ``digits`` is what was typed so far, else ``value`` was stepped to."""

    name: str
    before: Value
    value: Value
    within: Bounds
    digits: str = ""

    @property
    def problem(self) -> str | None:
        """Why this value cannot be set, with what is allowed."""
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
    def words(self) -> str:
        """``slots 4→8``."""
        return words(self.name, self.before, self.value)


def words(name: str, before: object, after: object) -> str:
    """A change as every line writes it: ``slots 4→8``."""
    return f"{name} {shown(name, before)}→{shown(name, after)}"


@dataclass(frozen=True)
class Turn:
    """One setting turned from one value to another."""

    name: str
    before: Value
    after: Value


def turns(changes: Mapping[str, Value], limits: LimitInfo) -> tuple[Turn, ...]:
    """What ``changes`` would turn, given the settings in force; what is so already or is not known is left out."""
    result = []
    for name, after in changes.items():
        before = _in_force(limits, name)
        if before is not None and before != after:
            result.append(Turn(name, before, after))
    return tuple(result)


def _in_force(limits: LimitInfo, name: str) -> Value | None:
    """The value of a setting, or the mode that was asked for and is to come."""
    value: Value | None = limits.next_mode or limits.mode if name == "mode" else getattr(limits, name, None)
    return value


@dataclass(frozen=True)
class Change:
    """A change of one or more settings that was sent: all of it comes into force, or none."""

    turns: tuple[Turn, ...]
    undo: bool = False
    revision: int | None = None
    """Of the settings after it; None until the engine answered."""
    base: int = 0
    """Of the settings that it was sent against."""
    unanswered: bool = False
    """No answer came, so it may be in force or not."""

    @property
    def changes(self) -> dict[str, Value]:
        """As the engine takes them."""
        return {turn.name: turn.after for turn in self.turns}

    @property
    def words(self) -> str:
        """``slots 4→8, queue 16→4``."""
        return ", ".join(words(turn.name, turn.before, turn.after) for turn in self.turns)

    @property
    def outcome(self) -> str:
        """What is said once it is in force."""
        return f"{self.words} {'taken back' if self.undo else 'in force'}"

    def reversed(self) -> Change:
        """What takes it back. If another hand moved a setting since, the revision is no longer ours: it is refused."""
        back = tuple(Turn(turn.name, turn.after, turn.before) for turn in self.turns)
        return Change(back, undo=True, base=self.revision or 0)


@dataclass
class Knobs:
    """All knobs of the console. ``message`` is the last outcome in words, ``failed`` whether it was a refusal."""

    edit: Edit | None = None
    pending: Change | None = None
    message: str = ""
    failed: bool = False
    _history: list[Change] = field(default_factory=list)
    _revision: int = 0
    """Newest revision known, from frames and answers."""
    _boot: str = ""
    _unanswered: Change | None = None
    """The newest change that was never answered, until it is known what came of it."""
    _unanswered_since: float | None = None
    """Uptime of the engine in the first frame after the answer was given up."""

    def see(self, frame: Frame) -> None:
        """Take note of a new frame: it may confirm the pending change, and a restart forgets what was changed."""
        if self.message == NOT_CONNECTED:
            self._say("")
        if frame.boot_id != self._boot:
            self._history.clear()
            self._boot, self._revision = frame.boot_id, 0
            self._unanswered = None
            if self.pending is not None and (self.pending.revision is not None or self.pending.unanswered):
                if self.pending.unanswered:
                    self._say(f"{self.pending.words}: not in force, the engine was started anew", failed=True)
                self.pending = None
        self._revision = max(self._revision, frame.limits.revision)
        change = self.pending
        if change is not None and change.revision is not None and frame.limits.revision >= change.revision:
            self.pending = None
            self._say(change.outcome)
        if self._unanswered is not None:
            self._settle(self._unanswered, frame)

    def _settle(self, change: Change, frame: Frame) -> None:
        """What came of a change that was never answered, told by the settings in force."""
        limits = frame.limits
        if limits.revision > change.base:
            waited = self.pending is change
            self._unanswered = self.pending = None
            # The engine may round a size, so any other value of the very next revision is ours too.
            ours = all(
                (value := _in_force(limits, turn.name)) == turn.after
                or (limits.revision == change.base + 1 and value != turn.before)
                for turn in change.turns
            )
            if ours:
                # If others changed settings too, the engine refuses to take it back, as after any foreign change.
                self._accepted(change, change.base + 1)
                self._say(change.outcome)
            elif waited:
                self._say(f"{change.words}: not in force, settings were changed by another hand", failed=True)
            return
        now = frame.time if frame.uptime is None else frame.uptime
        if self._unanswered_since is None:
            self._unanswered_since = now
        elif self.pending is change and now - self._unanswered_since >= SETTLED_AFTER:
            # It is still watched: an engine may take it up after a step of many seconds.
            self.pending = None
            self._say(f"{change.words}: not in force, the engine has not answered", failed=True)

    def select(self, name: str, limits: LimitInfo) -> None:
        """Take a knob in hand."""
        value = getattr(limits, name, None)
        if value is None:
            self._say(f"{name} is not known, so it cannot be changed", failed=True)
        elif self.edit is None or self.edit.name != name:
            self.edit = Edit(name, value, value, bounds(name, limits))
            self.message = ""

    def step(self, direction: int) -> None:
        """Turn the knob in hand by one step."""
        if self.edit is not None:
            value = stepped(self.edit.name, self.edit.value, direction, self.edit.within)
            self.edit = replace(self.edit, value=value, digits="")

    def type(self, digit: str) -> None:
        """Add a digit to the number, or begin one; among choices it says which one."""
        edit = self.edit
        if edit is None:
            return
        if values := choices(edit.name):
            if 1 <= int(digit) <= len(values):
                self.edit = replace(edit, value=values[int(digit) - 1])
            return
        most = len(str(bounds(edit.name).most))
        self._retype((edit.digits + digit).lstrip("0")[:most] or "0")

    def erase(self) -> None:
        """Take the last digit away; without digits back to the value in force."""
        if self.edit is not None and not choices(self.edit.name):
            self._retype(self.edit.digits[:-1])

    def _retype(self, digits: str) -> None:
        assert self.edit is not None
        self.edit = replace(self.edit, value=int(digits) if digits else self.edit.before, digits=digits)

    def drop(self) -> None:
        """Let go of the knob; nothing changes."""
        self.edit = None

    def apply(self) -> tuple[Change, int] | None:
        """The change to send and the revision it builds on; None if there is nothing to send."""
        edit = self.edit
        if edit is None:
            return None
        if edit.problem is not None:
            self._say(edit.problem, failed=True)
            return None
        if self.pending is not None:
            self._say("the change before is not confirmed yet", failed=True)
            return None
        self.edit = None
        if edit.value == edit.before:
            return None
        return self._send(Change((Turn(edit.name, edit.before, edit.value),), base=self._revision))

    def turn(self, wanted: tuple[Turn, ...]) -> tuple[Change, int] | None:
        """As :meth:`apply`, for several settings that belong together and were not in hand one by one."""
        if self.pending is not None:
            self._say("the change before is not confirmed yet", failed=True)
            return None
        return self._send(Change(wanted, base=self._revision)) if wanted else None

    def undo(self) -> tuple[Change, int] | None:
        """The change that takes the last one back and the revision it builds on; None if there is none."""
        if self.pending is not None:
            self._say("the change before is not confirmed yet", failed=True)
            return None
        if not self._history:
            self._say("nothing to take back", failed=True)
            return None
        return self._send(self._history[-1].reversed())

    def _send(self, change: Change) -> tuple[Change, int]:
        self.pending, self._unanswered = change, None
        return change, change.base

    def answered(self, answer: Answer) -> None:
        """Take the engine's answer to the pending change."""
        change = self.pending
        if change is None:
            return
        if answer.unknown:
            self.pending = self._unanswered = replace(change, unanswered=True)
            self._unanswered_since = None
            return
        if not answer.ok:
            self.pending = None
            reason = answer.message or "refused"
            if answer.conflict:
                reason = "someone else changed a setting meanwhile, so nothing was changed"
                if change.undo:
                    self._history.clear()
            self._say(f"{change.words}: {reason}", failed=True)
            return
        self.pending = self._accepted(change, answer.revision or 0)
        if answer.revision is not None and self._revision >= answer.revision:
            self.pending = None
            self._say(change.outcome)
        self._revision = max(self._revision, answer.revision or 0)

    def _accepted(self, change: Change, revision: int) -> Change:
        """The change as one that can be taken back, or what is left after it took one back."""
        accepted = replace(change, revision=revision, unanswered=False)
        if not change.undo:
            self._history.append(accepted)
        elif self._history:
            self._history.pop()
            if self._history:
                self._history[-1] = replace(self._history[-1], revision=revision)
        return accepted

    def _say(self, message: str, *, failed: bool = False) -> None:
        self.message, self.failed = message, failed
