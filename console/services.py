"""Everything of the console that is not Textual, made once, after the first paint.

Whoever wants to know what a key does reads ``keys/actions.py`` (key → command) and then the tables of handlers
(command → method): here for the console as a whole, in ``Page.handlers`` for each page.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from slotdeck.console.keys.actions import Command, Handlers
from slotdeck.console.keys.keymap import Keymap
from slotdeck.console.pages.context import PageContext
from slotdeck.console.pages.layout import Chrome
from slotdeck.console.pages.navigator import Navigator
from slotdeck.console.pages.page_registry import make_page
from slotdeck.console.pages.panels import ComparisonPanel, SettingsPanel
from slotdeck.console.processes.simulated_users import LoadControl, SimulatedUsers
from slotdeck.console.session.display import Display
from slotdeck.console.session.host import Host
from slotdeck.console.session.leaving import Leaving
from slotdeck.console.session.session import Session
from slotdeck.console.session.simulated_load import SimulatedLoad
from slotdeck.console.session.status_line import StatusLine
from slotdeck.console.sources.base import FrameSource
from slotdeck.console.sources.history import local_history
from slotdeck.console.state.store import View


class Services:
    """The session, what is shown of it, and who carries out which command."""

    def __init__(
        self,
        source: FrameSource,
        host: Host,
        *,
        clock: Callable[[], float],
        keys: dict[str, Any],
        hosted: bool,
        socket: Path | None,
        load: LoadControl | None,
        ask_how_to_leave: Callable[[], None],
    ) -> None:
        self._clock = clock
        if load is None and socket is not None:
            load = SimulatedUsers(socket)
        self.keymap = Keymap(keys)
        self.status = StatusLine(clock)
        self.session = Session(source, local_history, status=self.status, host=host, clock=clock)
        self.display = Display(self.session.store, clock)
        self.load = SimulatedLoad(load, self.status)
        self.leaving = Leaving(self.session, host, hosted=hosted, ask=ask_how_to_leave)
        self.settings_panel = SettingsPanel(self.session)
        self.comparison_panel = ComparisonPanel(self.display)
        self.navigator = Navigator(lambda name: make_page(name, self.context))
        self.context = PageContext(
            self.session, self.display, self.status, self.load, host, self.navigator.open, socket
        )
        self.handlers: dict[Command, Callable[..., Any]] = {
            **self.session.settings.handlers,
            Command.TOGGLE_SETTINGS: self.settings_panel.toggle,
            Command.TOGGLE_LOAD: self.load.toggle,
            Command.PAUSE: self.display.toggle_pause,
            Command.OPEN_PAGE: self.navigator.open,
            Command.CLOSE: self.navigator.close,
            Command.QUIT: self.leaving.quit,
        }
        """For the console as a whole. The app adds what only Textual can do."""

    def command_for(self, key: str) -> tuple[Command, str | int | None] | None:
        """What a key means now, with its argument."""
        editing = self.session.settings.editor.edit is not None
        action = self.keymap.action_for(key, editing=editing, page=self._key_page)
        if action is None:
            return None
        return action.command, int(key) if action.command is Command.DIGIT else action.argument

    def handler_for(self, command: Command) -> Callable[..., Any] | None:
        """Who carries out a command now: an open panel, else the page, else the console as a whole."""
        panels = [panel.handlers for panel in (self.settings_panel, self.comparison_panel) if panel.open]
        tables: list[Handlers] = [*panels, self.navigator.page.handlers, self.handlers]
        return next((table[command] for table in tables if command in table), None)

    @property
    def _key_page(self) -> str:
        """What the keys act on: the panel of settings while it is open, else the page."""
        return "panel" if self.settings_panel.open else self.navigator.page.name

    def chrome(self, view: View, width: int, height: int) -> Chrome:
        """What surrounds the view on a terminal of that size."""
        newest = self.session.store.view
        lost = newest.disconnected_at
        editor = self.session.settings.editor
        return Chrome(
            status=self.status.status(editor, newest.frame, newest.end),
            editing=editor.edit is not None,
            paused_for=self.display.paused_for,
            disconnected_for=None if lost is None else float(int(self._clock() - lost)),
            users=self.load.users,
            can_load=self.load.available,
            panel=self.settings_panel.lines(width, height) or self.comparison_panel.lines(view, width),
            keymap=self.keymap,
            page=self._key_page,
        )
