"""What a page may use: what it shows, and what it can ask the console to do."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slotdeck.console.session.display import Display
from slotdeck.console.session.host import Host
from slotdeck.console.session.prompts import Prompt
from slotdeck.console.session.session import Session
from slotdeck.console.session.simulated_load import SimulatedLoad
from slotdeck.console.session.status_line import Message, StatusLine
from slotdeck.console.settings.values import Value
from slotdeck.console.state.store import View


@dataclass(frozen=True)
class PageContext:
    """Given to each page when it is made."""

    session: Session
    display: Display
    status: StatusLine
    load: SimulatedLoad
    host: Host
    open_page: Callable[[str, str | None], None]
    """Show a page by its name, with an argument for it."""
    socket: Path | None = None
    """The admin socket of an engine on this machine; ``None`` for any other source."""

    @property
    def view(self) -> View:
        """What is shown; while paused it is an old view."""
        return self.display.view

    @property
    def newest(self) -> View:
        """What is known now, also while the view is paused."""
        return self.session.store.view

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the terminal in cells."""
        return self.host.terminal_size

    def say(self, text: str, *, failed: bool = False) -> Message:
        """Show a sentence on the status line for a while."""
        return self.status.say(text, failed=failed)

    def withdraw(self, message: Message | None) -> None:
        """Remove that sentence if it is still shown."""
        self.status.withdraw(message)

    def ask(self, prompt: Prompt) -> None:
        """Open a dialogue on the status line."""
        self.status.ask(prompt)

    def propose(self, values: Mapping[str, Value]) -> Message | None:
        """Show what these settings would do; enter applies them. Returns why there is nothing to propose, if so."""
        return self.session.settings.propose(values)

    def run(self, work: Coroutine[Any, Any, None], group: str, *, exclusive: bool = False) -> None:
        """Run ``work`` in the background. With ``exclusive`` it replaces earlier work of the same group."""
        self.host.run_in_background(work, group, exclusive=exclusive)

    def draw(self) -> None:
        """Draw the screen again."""
        self.host.draw()
