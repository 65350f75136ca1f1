"""The screen below all questions. It is painted before anything that draws a page is imported."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.events import Key
from textual.screen import Screen

from slotdeck.console.screens.canvas import Canvas
from slotdeck.console.terminal.themes import ConsoleTheme

if TYPE_CHECKING:  # imported after the first paint
    from slotdeck.console.pages.layout import Chrome
    from slotdeck.console.pages.page import Page
    from slotdeck.console.state.store import View


class PageScreen(Screen[None]):
    """Paints the page that is shown. ``on_press`` gets every key, as Textual names it, and its character."""

    def __init__(
        self, theme: ConsoleTheme, on_press: Callable[[str, str | None], Awaitable[None]], *, ascii_only: bool
    ) -> None:
        super().__init__()
        self.canvas = Canvas(theme, ascii_only=ascii_only, id="page")
        self._on_press = on_press
        self._shown: tuple[View, Page, int, Chrome, int, int] | None = None

    def compose(self) -> ComposeResult:
        self.canvas.show([((" slotdeck", "title"),)])  # what the first paint shows, before a page is imported
        yield self.canvas

    async def on_key(self, event: Key) -> None:
        """Hand every key over."""
        event.stop()
        event.prevent_default()
        await self._on_press(event.key, event.character)

    def show(self, page: Page, view: View, chrome: Chrome) -> None:
        """Draw what changed since the last call. If nothing changed, nothing is composed."""
        size = self.app.size
        wanted = (view, page, page.changed, chrome, size.width, size.height)
        before = self._shown
        if before is not None and before[0] is view and before[1:] == wanted[1:]:
            return
        self._shown = wanted
        lines = page.compose(view, chrome, size.width, size.height)
        self.canvas.show(lines, dimmed=page.stale_rows(view, chrome, size.width, size.height))
