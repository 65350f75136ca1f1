"""The sentence on the status line.

The first of these that applies is shown: an open prompt, the log of an engine that ended, the setting that is being
edited, a change under way, the newest message.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from slotdeck.console.session.prompts import Prompt, Status
from slotdeck.console.settings.change_preview import preview_change
from slotdeck.console.settings.editor import SettingsEditor
from slotdeck.console.settings.values import allowed_values, choices, shown
from slotdeck.console.sources.base import EngineEnd
from slotdeck.engine.telemetry.frame import Frame

MESSAGE_SECONDS = 15.0
"""How long a message stays."""


def shortened(path: Path) -> str:
    """A path as people write it, with ``~`` for the home folder."""
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)


@dataclass(frozen=True, eq=False)
class Message:
    """A sentence that was put on the status line. Each one equals only itself."""

    text: str
    failed: bool
    """It says that something was refused or went wrong."""
    time: float
    """Monotonic seconds at which it was said."""


class StatusLine:
    """The newest message, and the prompt if one is open. ``clock`` is monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.message: Message | None = None
        self.prompt: Prompt | None = None
        """While a prompt is open it gets every key."""

    def say(self, text: str, *, failed: bool = False) -> Message:
        """Show a sentence for a while in place of the one before. An empty one clears the line."""
        message = Message(text, failed, self._clock())
        self.message = message if text else None
        return message

    def withdraw(self, message: Message | None) -> None:
        """Clear the line if it still shows that message."""
        if message is not None and self.message is message:
            self.message = None

    def ask(self, prompt: Prompt) -> None:
        """Open a prompt."""
        self.prompt = prompt

    def press(self, key: str, character: str | None) -> bool:
        """Give a key to the open prompt. False if none is open."""
        prompt = self.prompt
        if prompt is None:
            return False
        if not prompt.press(key, character) and self.prompt is prompt:
            self.prompt = None
        return True

    def status(self, editor: SettingsEditor, frame: Frame | None, end: EngineEnd | None = None) -> Status:
        """The sentence for now. ``frame`` is the newest frame, also while the view is paused."""
        if self.prompt is not None:
            return self.prompt.status
        if end is not None and end.log is not None:
            return Status("the engine's log:", shortened(end.log), "text")
        edit, pending = editor.edit, editor.pending
        if edit is not None and frame is not None:
            if edit.problem is not None:
                return Status(f"{edit.description}:", edit.problem, "critical")
            if edit.value == edit.before:
                invitation = "+ and - choose" if choices(edit.name) else "+ and - or a number"
                return Status(
                    f"{edit.name} {shown(edit.name, edit.before)}",
                    f"{invitation}, {allowed_values(edit.name, edit.within)}",
                    "label",
                )
            preview = preview_change(edit.name, edit.value, frame)
            return Status(f"{edit.description}:", preview.text, preview.level if preview.level != "ok" else "text")
        if pending is not None:
            return Status(pending.description, "pending, the engine has not confirmed", "warn")
        message = self.message
        if message is None or self._clock() - message.time > MESSAGE_SECONDS:
            return Status()
        return Status("", message.text, "critical" if message.failed else "ok")
