"""Short dialogues on the status line: a text to type, a question to answer with y."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from console.consequences import Consequence
from console.status import Status

LONGEST_ENTRY = 64


class Prompt(Protocol):
    """While one is open it gets every key."""

    @property
    def status(self) -> Status:
        """What the status line shows."""
        ...

    def press(self, key: str, character: str | None) -> bool:
        """Take a key; False closes the prompt."""
        ...


@dataclass
class Entry:
    """A text being typed. ``changed`` hears of every change, so that its effect shows at once."""

    label: str
    changed: Callable[[str], None]
    text: str = ""

    @property
    def status(self) -> Status:
        return Status(f"{self.label} {self.text}_", "enter keeps it, esc clears it", "label")

    def press(self, key: str, character: str | None) -> bool:
        if key == "enter":
            return False
        if key in ("escape", "ctrl+c"):
            self.text = ""
            self.changed("")
            return False
        if key == "backspace":
            self.text = self.text[:-1]
        elif key == "ctrl+u":
            self.text = ""
        elif character is not None and character.isprintable() and len(self.text) < LONGEST_ENTRY:
            self.text += character
        self.changed(self.text)
        return True


@dataclass
class Question:
    """Asks before something that cannot be taken back; only ``y`` does it, any other key lets it be."""

    head: str
    text: str
    confirmed: Callable[[], None]

    @property
    def status(self) -> Status:
        return Status(self.head, f"{self.text}  y yes, any other key no", "warn")

    def press(self, key: str, character: str | None) -> bool:
        if key == "y":
            self.confirmed()
        return False


@dataclass
class Offer:
    """Offers a change of settings with what would follow from it now; only enter makes it."""

    head: str
    follows: Callable[[], Consequence]
    confirmed: Callable[[], None]

    @property
    def status(self) -> Status:
        follows = self.follows()
        level = "text" if follows.level == "ok" else follows.level
        return Status(f"{self.head}:", f"{follows.text}  enter applies, any other key drops", level)

    def press(self, key: str, character: str | None) -> bool:
        if key == "enter":
            self.confirmed()
        return False
