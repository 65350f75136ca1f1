"""Which page is shown, and where esc leads."""

from __future__ import annotations

from collections.abc import Callable

from slotdeck.console.keys.actions import LIVE
from slotdeck.console.pages.page import Page


class Navigator:
    """Opens and closes pages. ``make`` makes the page of a name when it is first shown."""

    def __init__(self, make: Callable[[str], Page]) -> None:
        self._make = make
        self._pages: dict[str, Page] = {}
        self._trail = [LIVE]
        """Names of the pages that were opened one from another. The last one is shown."""

    @property
    def page(self) -> Page:
        """The page that is shown."""
        name = self._trail[-1]
        if name not in self._pages:
            self._pages[name] = self._make(name)
        return self._pages[name]

    def open(self, name: str, argument: str | None = None) -> None:
        """Show a page; esc goes back to the one from which it was opened. The Live page is below all others."""
        self.page.closed()
        kept = self._trail[: self._trail.index(name)] if name in self._trail else self._trail
        self._trail = [LIVE] if name == LIVE else [*kept, name]
        self.page.opened(argument)

    def close(self) -> None:
        """Close what is open inside the page, or else the page itself."""
        if self.page.back() or len(self._trail) == 1:
            return
        self.page.closed()
        self._trail.pop()
        self.page.opened(None)
