"""Short dialogues on the status line: a text to type, a question to answer with y."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from slotdeck.console.session.status import Status
from slotdeck.console.settings.change_preview import Consequence

MAX_ENTRY = 64


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
        self.text = _edited(self.text, key, character)
        self.changed(self.text)
        return True


@dataclass
class Typed:
    """A value being typed. ``done`` takes the text on enter and says why it cannot be, or nothing; esc drops it."""

    label: str
    hint: str
    done: Callable[[str], str | None]
    text: str = ""
    problem: str | None = None

    @property
    def status(self) -> Status:
        head = f"{self.label} {self.text}_"
        return Status(head, self.problem, "critical") if self.problem else Status(head, self.hint, "label")

    def press(self, key: str, character: str | None) -> bool:
        if key == "enter":
            self.problem = self.done(self.text)
            return self.problem is not None
        if key in ("escape", "ctrl+c"):
            return False
        self.text, self.problem = _edited(self.text, key, character), None
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


def _edited(text: str, key: str, character: str | None) -> str:
    """The text after one key."""
    if key == "backspace":
        return text[:-1]
    if key == "ctrl+u":
        return ""
    if character is not None and character.isprintable() and len(text) < MAX_ENTRY:
        return text + character
    return text
