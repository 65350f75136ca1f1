"""The sentence on the status line: a knob in hand first, then a change under way, then what happened last."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from slotdeck.console.settings.change_preview import consequence
from slotdeck.console.settings.live_settings import Knobs, allowed, choices, shown
from slotdeck.console.sources.base import EngineEnd
from slotdeck.engine.telemetry.frame import Frame

MESSAGE_SECONDS = 15.0
"""How long the last outcome stays."""


def shortened(path: Path) -> str:
    """A path as people write it, with ``~`` for their home."""
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)


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

    def show(self, knobs: Knobs, frame: Frame | None, end: EngineEnd | None = None) -> Status:
        """The sentence for now. Consequences are computed from the newest frame, also while the view is paused."""
        if end is not None and end.log is not None:
            return Status("the engine's last words:", shortened(end.log), "text")
        edit, pending = knobs.edit, knobs.pending
        if edit is not None and frame is not None:
            if edit.problem is not None:
                return Status(f"{edit.words}:", edit.problem, "critical")
            if edit.value == edit.before:
                invitation = "+ and - or a number" if not choices(edit.name) else "+ and - choose"
                return Status(
                    f"{edit.name} {shown(edit.name, edit.before)}",
                    f"{invitation}, {allowed(edit.name, edit.within)}",
                    "label",
                )
            follows = consequence(edit.name, edit.value, frame)
            return Status(f"{edit.words}:", follows.text, follows.level if follows.level != "ok" else "text")
        if pending is not None:
            return Status(pending.words, "pending, the engine has not confirmed", "warn")
        said = (knobs.message, knobs.failed)
        if said != self._said:
            self._said, self._since = said, self._clock()
        if not said[0] or self._clock() - self._since > MESSAGE_SECONDS:
            return Status()
        return Status("", said[0], "critical" if said[1] else "ok")
