"""What all pages of the console have in common.

A page is not a widget. It turns the newest view into lines with a pure function, keeps what was selected on it, and
has a table of the commands that it carries out. Only the page that is shown does any work.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from slotdeck.console.drawing.cells import Line
from slotdeck.console.keys.actions import Command, Handlers
from slotdeck.console.pages.context import PageContext
from slotdeck.console.pages.layout import Chrome
from slotdeck.console.state.store import View

TOP_ROWS, FOOT_ROWS = 3, 2
"""Rows of title, heading and banner, and of status line and keys."""
_ALL = 1_000_000
"""More steps than any list has places."""


class Page:
    """One page. :meth:`compose` draws it; ``handlers`` says which commands it carries out itself."""

    name: ClassVar[str]
    """As ``Command.OPEN_PAGE`` calls it."""

    def __init__(self, context: PageContext) -> None:
        self.context = context
        self.changed = 0
        """Rises whenever the page must be composed again although the view is the same."""
        self.handlers: Handlers = {}
        """Methods for commands. They come before those of the console as a whole."""

    def compose(self, view: View, chrome: Chrome, width: int, height: int) -> list[Line]:
        """The whole terminal: exactly ``height`` lines of exactly ``width`` cells. Has no side effects."""
        raise NotImplementedError

    def stale_rows(self, view: View, chrome: Chrome, width: int, height: int) -> int:
        """How many rows from the top show what is no longer true; they are dimmed."""
        return 0

    def on_view(self, view: View) -> None:
        """Another view is about to be composed. Whatever takes time or changes the page happens here."""

    def opened(self, argument: str | None) -> None:
        """The page is shown from now on. Begin to fetch what it needs."""

    def closed(self) -> None:
        """Another page is shown from now on. Stop fetching."""

    def back(self) -> bool:
        """Close what is open inside the page. False if nothing is, so that the page itself closes."""
        return False

    def copied(self) -> str | None:
        """The text for the clipboard; ``None``: the whole page as it is drawn."""
        return None

    def redraw(self) -> None:
        """Compose again and paint what differs."""
        self.changed += 1
        self.context.draw()

    def body_height(self, top: int = TOP_ROWS) -> int:
        """Rows between ``top`` rows above and a status line of one row."""
        return max(1, self.context.size[1] - top - FOOT_ROWS)


def list_handlers(move: Callable[[int], None], page_size: Callable[[], int]) -> Handlers:
    """Handlers of the keys that move through a list. ``move`` takes a number of places and stops at both ends."""
    return {
        Command.MOVE: move,
        Command.PAGE: lambda direction: move(direction * max(1, page_size())),
        Command.END: lambda direction: move(direction * _ALL),
    }
