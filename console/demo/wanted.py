"""What a demonstration is to show, from the flags of the command line or from the Demo page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from slotdeck.console.demo.rows import MAX_USERS, MODES, SECONDS, USERS, WHO, Mode, Row, Who, usual_rows
from slotdeck.console.demo.scenes import SCENES, scene_rows

DEFAULT_WHO: tuple[Who, ...] = ("human", "agent")
USUAL = {"slots": 4, "context": 2048, "kv_tokens": 8192, "queue": 16}


@dataclass(frozen=True)
class Wanted:
    """All combinations of users, kinds and modes; or scenes by name, if any are given."""

    users: tuple[int, ...] = USERS
    who: tuple[Who, ...] = DEFAULT_WHO
    modes: tuple[Mode, ...] = MODES
    seconds: float = SECONDS
    scenes: tuple[str, ...] = ()

    def rows(self, settings: dict[str, Any], trained: int | None) -> list[Row]:
        """See :data:`slotdeck.console.demo.run.MakeRows`."""
        if not self.scenes:
            return usual_rows(self.users, self.who, self.modes, self.seconds)
        return [row for name in self.scenes for row in scene_rows(name, settings, trained)]

    def expected(self) -> list[Row]:
        """Rows with the same number and times, without asking an engine: its settings only affect lengths in tokens."""
        return self.rows(USUAL, None)


def parse(users: str, kinds: str, modes: str, seconds: float, scenes: list[str]) -> Wanted:
    """Parse flags. Raises ValueError with a sentence."""
    try:
        counts = tuple(int(part) for part in users.split(","))
    except ValueError:
        counts = ()
    if not counts or min(counts) < 1 or max(counts) > MAX_USERS:
        raise ValueError(f"--users must be a list of numbers from 1 to {MAX_USERS} such as 2,5,20, not {users!r}")
    if "all" in scenes:
        scenes = list(SCENES)
    unknown = [name for name in scenes if name not in SCENES]
    if unknown:
        raise ValueError(f"there is no scene {unknown[0]!r}; choose from {', '.join(SCENES)}, or all")
    return Wanted(
        counts, _words(kinds, WHO, "--kinds"), _words(modes, MODES, "--modes"), seconds, tuple(dict.fromkeys(scenes))
    )


def _words(text: str, known: tuple[Any, ...], flag: str) -> tuple[Any, ...]:
    words = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    wrong = [word for word in words if word not in known]
    if wrong or not words:
        raise ValueError(f"{flag} must be a list of {', '.join(known)}, not {text!r}")
    return words
