"""The panels over the lower part of a page: all live settings, and the comparison before and after a change."""

from __future__ import annotations

from slotdeck.console.drawing.cells import Line
from slotdeck.console.drawing.scrolling import moved
from slotdeck.console.keys.actions import Command, Handlers
from slotdeck.console.pages.page import list_handlers
from slotdeck.console.sections.comparison_table import comparison_lines
from slotdeck.console.sections.settings_panel import settings_panel
from slotdeck.console.session.display import Display
from slotdeck.console.session.session import Session
from slotdeck.console.settings.values import LIVE_SETTINGS
from slotdeck.console.state.store import View

ROWS_LEFT = 14
"""Rows of the terminal that the panel leaves for the page, title and status line included."""


class SettingsPanel:
    """Lists all live settings. While it is open its keys come before those of the page."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.open = False
        self.selected = 0
        self.handlers: Handlers = {
            **list_handlers(self.move, lambda: len(LIVE_SETTINGS)),
            Command.TOGGLE_SETTINGS: self.toggle,
            Command.CLOSE: self.toggle,
            Command.INSPECT: self.edit_selected,
        }

    def toggle(self) -> None:
        """Open or close the panel."""
        self.open = not self.open

    def move(self, step: int) -> None:
        """Select another setting."""
        self.selected = moved(self.selected, step, len(LIVE_SETTINGS))

    def edit_selected(self) -> None:
        """Begin to edit the selected setting."""
        self._session.settings.edit(LIVE_SETTINGS[self.selected])

    def lines(self, width: int, height: int) -> tuple[Line, ...]:
        """The panel for a terminal of that size; empty while it is closed."""
        if not self.open:
            return ()
        limits, edit = self._session.store.view.limits, self._session.settings.editor.edit
        return tuple(settings_panel(limits, edit, self.selected, width=width, height=max(3, height - ROWS_LEFT)))


class ComparisonPanel:
    """Shows the minute before and the minute after the newest change, until it is closed."""

    def __init__(self, display: Display) -> None:
        self._display = display
        self._closed: float | None = None
        """When the comparison that was closed began."""
        self.handlers: Handlers = {Command.CLOSE: self.close}

    @property
    def open(self) -> bool:
        """There is a comparison, and it was not closed."""
        comparison = self._display.view.comparison
        return comparison is not None and comparison.began != self._closed

    def close(self) -> None:
        """Close this comparison. The next change opens the panel again."""
        comparison = self._display.view.comparison
        self._closed = comparison.began if comparison is not None else None

    def lines(self, view: View, width: int) -> tuple[Line, ...]:
        """The comparison; empty while the panel is closed."""
        return tuple(comparison_lines(view.comparison, width)) if view.comparison is not None and self.open else ()
