"""What the Textual app does for everything below it."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Protocol


class Host(Protocol):
    """The program around a session: background work, drawing, its end."""

    @property
    def terminal_size(self) -> tuple[int, int]:
        """Width and height of the terminal in cells."""
        ...

    def run_in_background(self, work: Coroutine[Any, Any, None], group: str, *, exclusive: bool = False) -> None:
        """Run ``work`` beside everything else. With ``exclusive`` it replaces earlier work of the same group."""
        ...

    def draw(self) -> None:
        """Bring the screen up to date."""
        ...

    def end(self, code: int) -> None:
        """End the console with an exit code."""
        ...
