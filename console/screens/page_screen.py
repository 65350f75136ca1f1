"""The one screen below all questions. Light: it is painted before anything that draws a page is imported."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.events import Key
from textual.screen import Screen

from slotdeck.console.screens.canvas import Canvas
from slotdeck.console.terminal.themes import ConsoleTheme

if TYPE_CHECKING:
    from slotdeck.console.app import ConsoleApp
    from slotdeck.console.pages.page import Chrome, Page
    from slotdeck.console.state.store import View


class PageScreen(Screen[None]):
    """Paints the page that is shown, and hands every key to the registry."""

    def __init__(self, theme: ConsoleTheme, *, ascii_only: bool) -> None:
        super().__init__()
        self.canvas = Canvas(theme, ascii_only=ascii_only, id="page")
        self._shown: tuple[View, Page, int, Chrome, int, int] | None = None

    def compose(self) -> ComposeResult:
        self.canvas.show([((" slotdeck", "title"),)])  # what the first paint shows, before a page is imported
        yield self.canvas

    async def on_key(self, event: Key) -> None:
        """Every key ends here."""
        event.stop()
        event.prevent_default()
        await self.console_app.press(event.key, event.character)

    @property
    def console_app(self) -> ConsoleApp:
        from slotdeck.console.app import ConsoleApp

        assert isinstance(self.app, ConsoleApp)
        return self.app

    def show(self, page: Page, view: View, chrome: Chrome) -> None:
        """Draw what changed since the last call; without a change nothing is computed."""
        size = self.app.size
        wanted = (view, page, page.changed, chrome, size.width, size.height)
        before = self._shown
        if before is not None and before[0] is view and before[1:] == wanted[1:]:
            return
        self._shown = wanted
        lines = page.compose(view, chrome, size.width, size.height)
        self.canvas.show(lines, dimmed=page.stale_rows(view, chrome, size.width, size.height))
