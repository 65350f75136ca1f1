"""Short dialogues on the status line: a text to type, a question to answer, a change of settings to confirm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from slotdeck.console.settings.change_preview import ChangePreview

MAX_TEXT = 64
"""Characters that can be typed."""


@dataclass(frozen=True)
class Status:
    """A sentence on the status line."""

    head: str = ""
    """What it is about."""
    text: str = ""
    level: str = "text"
    """Name of the style that says how serious it is."""


class Prompt(Protocol):
    """A dialogue. While it is open it gets every key."""

    @property
    def status(self) -> Status:
        """What the status line shows."""
        ...

    def press(self, key: str, character: str | None) -> bool:
        """Take a key. False closes the prompt."""
        ...


@dataclass
class TextPrompt:
    """A text that takes effect while it is typed: ``on_change`` is called with every new text."""

    label: str
    on_change: Callable[[str], None]
    text: str = ""

    @property
    def status(self) -> Status:
        return Status(f"{self.label} {self.text}_", "enter keeps it, esc clears it", "label")

    def press(self, key: str, character: str | None) -> bool:
        if key == "enter":
            return False
        if key in ("escape", "ctrl+c"):
            self.text = ""
            self.on_change("")
            return False
        self.text = _edited(self.text, key, character)
        self.on_change(self.text)
        return True


@dataclass
class ValuePrompt:
    """A value that takes effect on enter. ``on_enter`` takes the text and returns why it is refused, or ``None``."""

    label: str
    hint: str
    on_enter: Callable[[str], str | None]
    text: str = ""
    problem: str | None = None

    @property
    def status(self) -> Status:
        head = f"{self.label} {self.text}_"
        return Status(head, self.problem, "critical") if self.problem else Status(head, self.hint, "label")

    def press(self, key: str, character: str | None) -> bool:
        if key == "enter":
            self.problem = self.on_enter(self.text)
            return self.problem is not None
        if key in ("escape", "ctrl+c"):
            return False
        self.text, self.problem = _edited(self.text, key, character), None
        return True


@dataclass
class ConfirmPrompt:
    """A question before something that cannot be undone. ``y`` confirms it, any other key closes the question."""

    head: str
    text: str
    on_confirm: Callable[[], None]

    @property
    def status(self) -> Status:
        return Status(self.head, f"{self.text}  y yes, any other key no", "warn")

    def press(self, key: str, character: str | None) -> bool:
        if key == "y":
            self.on_confirm()
        return False


@dataclass
class ProposalPrompt:
    """A proposed change of settings with its effect. Enter applies the change, any other key drops it."""

    head: str
    preview: Callable[[], ChangePreview]
    """The effect, computed from the newest frame."""
    on_confirm: Callable[[], None]

    @property
    def status(self) -> Status:
        preview = self.preview()
        level = "text" if preview.level == "ok" else preview.level
        return Status(f"{self.head}:", f"{preview.text}  enter applies, any other key drops", level)

    def press(self, key: str, character: str | None) -> bool:
        if key == "enter":
            self.on_confirm()
        return False


def _edited(text: str, key: str, character: str | None) -> str:
    """The text after one key."""
    if key == "backspace":
        return text[:-1]
    if key == "ctrl+u":
        return ""
    if character is not None and character.isprintable() and len(text) < MAX_TEXT:
        return text + character
    return text
