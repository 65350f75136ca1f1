"""Turning a knob: the value being chosen, the change under way, and what can be taken back.

Pure state. The app sends what :meth:`Knobs.apply` returns and reports the answer; frames confirm it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from console.sources.base import Answer
from engine.settings import SETTINGS
from engine.telemetry.frame import Frame, LimitInfo

KNOBS = tuple(name for name, setting in SETTINGS.items() if setting.live and setting.key)
"""Names of the settings that have a key."""

MOST_DIGITS = 7


def bounds(name: str) -> tuple[int, int]:
    """Smallest and largest value that the table of settings allows."""
    setting = SETTINGS[name]
    return int(setting.minimum or 0), int(setting.maximum or 10**MOST_DIGITS - 1)


def stepped(name: str, value: int, direction: int) -> int:
    """The next value up (1) or down (-1) in steps fit for the setting, inside its bounds."""
    if name == "budget":
        power = 1 << (value.bit_length() - 1)
        down = power // 2 if power == value else power
        value = power * 2 if direction > 0 else down
    elif name == "context":
        step = 256 if value + direction < 4096 else 1024
        value = (value // step + 1) * step if direction > 0 else (-(-value // step) - 1) * step
    else:
        value += direction
    low, high = bounds(name)
    return min(high, max(low, value))


@dataclass(frozen=True)
class Edit:
    """A knob in hand: ``digits`` is what was typed so far, else ``value`` was stepped to."""

    name: str
    before: int
    value: int
    digits: str = ""

    @property
    def problem(self) -> str | None:
        """Why this value cannot be set, with what is allowed."""
        low, high = bounds(self.name)
        unit = SETTINGS[self.name].unit
        return None if low <= self.value <= high else f"{self.name} must be between {low} and {high} {unit}"


@dataclass(frozen=True)
class Change:
    """A change of one setting that was sent."""

    name: str
    before: int
    after: int
    undo: bool = False
    revision: int | None = None
    """Of the settings after it; None until the engine answered."""


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

    def see(self, frame: Frame) -> None:
        """Take note of a new frame: it may confirm the pending change, and a restart forgets what was changed."""
        if frame.boot_id != self._boot:
            self._history.clear()
            self._boot, self._revision = frame.boot_id, 0
            if self.pending is not None and self.pending.revision is not None:
                self.pending = None
        self._revision = max(self._revision, frame.limits.revision)
        change = self.pending
        if change is not None and change.revision is not None and frame.limits.revision >= change.revision:
            self.pending = None
            self._say(f"{change.name} {change.before}→{change.after} {'taken back' if change.undo else 'in force'}")

    def select(self, name: str, limits: LimitInfo) -> None:
        """Take a knob in hand."""
        value = getattr(limits, name)
        if value is None:
            self._say(f"{name} is not known, so it cannot be changed", failed=True)
        elif self.edit is None or self.edit.name != name:
            self.edit = Edit(name, value, value)
            self.message = ""

    def step(self, direction: int) -> None:
        """Turn the knob in hand by one step."""
        if self.edit is not None:
            value = stepped(self.edit.name, self.edit.value, direction)
            self.edit = Edit(self.edit.name, self.edit.before, value)

    def type(self, digit: str) -> None:
        """Add a digit to the number, or begin one."""
        if self.edit is not None:
            self._retype((self.edit.digits + digit).lstrip("0")[:MOST_DIGITS] or "0")

    def erase(self) -> None:
        """Take the last digit away; without digits back to the value in force."""
        if self.edit is not None:
            self._retype(self.edit.digits[:-1])

    def _retype(self, digits: str) -> None:
        assert self.edit is not None
        self.edit = Edit(self.edit.name, self.edit.before, int(digits) if digits else self.edit.before, digits)

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
        self.pending = Change(edit.name, edit.before, edit.value)
        return self.pending, self._revision

    def undo(self) -> tuple[Change, int] | None:
        """The change that takes the last one back and the revision it builds on; None if there is none."""
        if self.pending is not None:
            self._say("the change before is not confirmed yet", failed=True)
            return None
        if not self._history:
            self._say("nothing to take back", failed=True)
            return None
        last = self._history[-1]
        self.pending = Change(last.name, last.after, last.before, undo=True)
        # If another hand moved a setting since, the revision is no longer ours, and the engine refuses.
        return self.pending, last.revision or 0

    def answered(self, answer: Answer) -> None:
        """Take the engine's answer to the pending change."""
        change = self.pending
        if change is None:
            return
        if not answer.ok:
            self.pending = None
            reason = answer.message or "refused"
            if answer.conflict:
                reason = "someone else changed a setting meanwhile, so nothing was changed"
                if change.undo:
                    self._history.clear()
            self._say(f"{change.name} {change.before}→{change.after}: {reason}", failed=True)
            return
        confirmed = Change(change.name, change.before, change.after, change.undo, answer.revision or 0)
        self.pending = confirmed
        if change.undo:
            self._history.pop()
            if self._history:
                below = self._history[-1]
                self._history[-1] = Change(below.name, below.before, below.after, revision=answer.revision)
        else:
            self._history.append(confirmed)
        if answer.revision is not None and self._revision >= answer.revision:
            self.pending = None
            self._say(f"{change.name} {change.before}→{change.after} {'taken back' if change.undo else 'in force'}")
        self._revision = max(self._revision, answer.revision or 0)

    def _say(self, message: str, *, failed: bool = False) -> None:
        self.message, self.failed = message, failed
