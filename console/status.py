"""The sentence on the status line: a knob in hand first, then a change under way, then what happened last."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from console.consequences import consequence
from console.knobs import Knobs, bounds
from engine.settings import SETTINGS
from engine.telemetry.frame import Frame

MESSAGE_SECONDS = 15.0
"""How long the last outcome stays."""


@dataclass(frozen=True)
class Status:
    """What it is about, what it says, and the name of the style that says how serious it is."""

    head: str = ""
    text: str = ""
    level: str = "text"


class StatusLine:
    """Remembers only since when the newest message is shown; ``clock`` is monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._said: tuple[str, bool] = ("", False)
        self._since = 0.0

    def show(self, knobs: Knobs, frame: Frame | None) -> Status:
        """The sentence for now. Consequences are computed from the newest frame, also while the view is paused."""
        edit, pending = knobs.edit, knobs.pending
        if edit is not None and frame is not None:
            change = f"{edit.name} {edit.before}→{edit.value}:"
            if edit.problem is not None:
                return Status(change, edit.problem, "critical")
            if edit.value == edit.before:
                low, high = bounds(edit.name)
                invitation = f"+ and - or a number, {low} to {high} {SETTINGS[edit.name].unit}"
                return Status(f"{edit.name} {edit.before}", invitation, "label")
            follows = consequence(edit.name, edit.value, frame)
            return Status(change, follows.text, follows.level if follows.level != "ok" else "text")
        if pending is not None:
            change = f"{pending.name} {pending.before}→{pending.after}"
            return Status(change, "pending, the engine has not confirmed", "warn")
        said = (knobs.message, knobs.failed)
        if said != self._said:
            self._said, self._since = said, self._clock()
        if not said[0] or self._clock() - self._since > MESSAGE_SECONDS:
            return Status()
        return Status("", said[0], "critical" if said[1] else "ok")
