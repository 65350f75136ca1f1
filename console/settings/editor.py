"""Editing live settings: the value being chosen, the change under way, and the changes that can be taken back.

Pure state. The caller sends what :meth:`SettingsEditor.apply` returns and reports the answer to
:meth:`SettingsEditor.on_answer`; later frames confirm the change.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from slotdeck.console.settings.changes import ChangeRequest, Edit, SettingChange, value_in_force
from slotdeck.console.settings.values import bounds, choices, stepped
from slotdeck.console.sources.base import Answer
from slotdeck.engine.telemetry.frame import Frame, LimitInfo

SETTLED_AFTER = 5.0
"""Seconds of frames without a sign of an unanswered change, after which the change counts as not applied."""


class Say(Protocol):
    """Puts a sentence on the status line; ``failed`` marks a refusal, an empty text clears the line."""

    def __call__(self, text: str, *, failed: bool = False) -> object: ...


class SettingsEditor:
    """At most one setting being edited, at most one change pending, and a history for undo."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self.edit: Edit | None = None
        """The setting that is being edited."""
        self.pending: ChangeRequest | None = None
        """The change that was sent and is not confirmed yet."""
        self._history: list[ChangeRequest] = []
        self._revision = 0
        """The newest revision of the settings known from frames and answers."""
        self._boot = ""
        self._unanswered: ChangeRequest | None = None
        """The newest change that the engine never answered, until frames show what became of it."""
        self._unanswered_since: float | None = None
        """Uptime of the engine in the first frame after waiting for the answer was given up."""

    def on_frame(self, frame: Frame) -> None:
        """Take a new frame. It may confirm the pending change; after a restart nothing can be taken back."""
        if frame.boot_id != self._boot:
            self._on_restart(frame)
        self._revision = max(self._revision, frame.limits.revision)
        change = self.pending
        if change is not None and change.revision is not None and frame.limits.revision >= change.revision:
            self.pending = None
            self._say(change.outcome)
        if self._unanswered is not None:
            self._settle(self._unanswered, frame)

    def _on_restart(self, frame: Frame) -> None:
        self._history.clear()
        self._boot, self._revision = frame.boot_id, 0
        self._unanswered = None
        pending = self.pending
        if pending is not None and (pending.revision is not None or pending.unanswered):
            if pending.unanswered:
                self._say(f"{pending.description}: not in force, the engine was restarted", failed=True)
            self.pending = None

    def _settle(self, change: ChangeRequest, frame: Frame) -> None:
        """Find out from the settings in force what became of a change that was never answered."""
        limits = frame.limits
        if limits.revision > change.base:
            waited = self.pending is change
            self._unanswered = self.pending = None
            # The engine may round a size, so any other value of the very next revision is ours too.
            ours = all(
                (value := value_in_force(limits, one.name)) == one.after
                or (limits.revision == change.base + 1 and value != one.before)
                for one in change.changes
            )
            if ours:
                # If others changed settings too, the engine refuses to take it back, as after any foreign change.
                self._accepted(change, change.base + 1)
                self._say(change.outcome)
            elif waited:
                self._say(f"{change.description}: not in force, someone else changed the settings", failed=True)
            return
        now = frame.time if frame.uptime is None else frame.uptime
        if self._unanswered_since is None:
            self._unanswered_since = now
        elif self.pending is change and now - self._unanswered_since >= SETTLED_AFTER:
            # It is still watched: the engine may apply it after a step of many seconds.
            self.pending = None
            self._say(f"{change.description}: not in force, the engine has not answered", failed=True)

    def select(self, name: str, limits: LimitInfo) -> None:
        """Begin to edit a setting."""
        value = getattr(limits, name, None)
        if value is None:
            self._say(f"{name} is not known, so it cannot be changed", failed=True)
        elif self.edit is None or self.edit.name != name:
            self.edit = Edit(name, value, value, bounds(name, limits))
            self._say("")

    def step(self, direction: int) -> None:
        """Change the edited value by one step, up (1) or down (-1)."""
        if self.edit is not None:
            value = stepped(self.edit.name, self.edit.value, direction, self.edit.within)
            self.edit = replace(self.edit, value=value, digits="")

    def type_digit(self, digit: int) -> None:
        """Append a digit to the number, or begin a new number. Among choices, 1 is the first one."""
        edit = self.edit
        if edit is None:
            return
        if values := choices(edit.name):
            if 1 <= digit <= len(values):
                self.edit = replace(edit, value=values[digit - 1])
            return
        max_digits = len(str(bounds(edit.name).most))
        self._retype(f"{edit.digits}{digit}".lstrip("0")[:max_digits] or "0")

    def erase(self) -> None:
        """Delete the last digit. Without digits the value is again the one in force."""
        if self.edit is not None and not choices(self.edit.name):
            self._retype(self.edit.digits[:-1])

    def _retype(self, digits: str) -> None:
        assert self.edit is not None
        self.edit = replace(self.edit, value=int(digits) if digits else self.edit.before, digits=digits)

    def drop(self) -> None:
        """Stop editing; nothing changes."""
        self.edit = None

    def apply(self) -> ChangeRequest | None:
        """The request to send for the edited setting; ``None`` if there is nothing to send."""
        edit = self.edit
        if edit is None:
            return None
        if edit.problem is not None:
            self._say(edit.problem, failed=True)
            return None
        if self._busy():
            return None
        self.edit = None
        if edit.value == edit.before:
            return None
        return self._send(ChangeRequest((SettingChange(edit.name, edit.before, edit.value),), base=self._revision))

    def apply_all(self, changes: tuple[SettingChange, ...]) -> ChangeRequest | None:
        """As :meth:`apply`, for several settings that are changed together."""
        if self._busy():
            return None
        return self._send(ChangeRequest(changes, base=self._revision)) if changes else None

    def undo(self) -> ChangeRequest | None:
        """The request that takes the last change back; ``None`` if there is none."""
        if self._busy():
            return None
        if not self._history:
            self._say("nothing to take back", failed=True)
            return None
        return self._send(self._history[-1].reversed())

    def _busy(self) -> bool:
        """True, with a message, while a change is pending."""
        if self.pending is not None:
            self._say("the previous change is not confirmed yet", failed=True)
        return self.pending is not None

    def _send(self, request: ChangeRequest) -> ChangeRequest:
        self.pending, self._unanswered = request, None
        return request

    def on_answer(self, answer: Answer) -> None:
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
            self._say(f"{change.description}: {reason}", failed=True)
            return
        self.pending = self._accepted(change, answer.revision or 0)
        if answer.revision is not None and self._revision >= answer.revision:
            self.pending = None
            self._say(change.outcome)
        self._revision = max(self._revision, answer.revision or 0)

    def _accepted(self, change: ChangeRequest, revision: int) -> ChangeRequest:
        """Note an accepted change for undo, or forget the one that it took back. Returns it with its revision."""
        accepted = replace(change, revision=revision, unanswered=False)
        if not change.undo:
            self._history.append(accepted)
        elif self._history:
            self._history.pop()
            if self._history:
                self._history[-1] = replace(self._history[-1], revision=revision)
        return accepted
