"""The admin's hand on the knobs: what the keys do with :class:`Knobs`, and the panel that lists all settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from slotdeck.console.drawing.cells import Line
from slotdeck.console.sections.comparison_table import card_lines
from slotdeck.console.sections.settings_panel import settings_panel
from slotdeck.console.session.prompts import Offer
from slotdeck.console.settings.change_preview import Consequence, consequence_of_all
from slotdeck.console.settings.live_settings import LIVE_SETTINGS, NOT_CONNECTED, Change, Value, turns
from slotdeck.console.state.store import View

if TYPE_CHECKING:
    from slotdeck.console.app import ConsoleApp


ROWS_LEFT = 14
"""Rows of the terminal that the panel leaves to what lies under it, title and status line included."""


class SettingsController:
    """Takes a setting in hand, turns it, sends it, takes it back."""

    def __init__(self, app: ConsoleApp) -> None:
        self._app = app

    def action_knob(self, name: str) -> None:
        """Take a setting in hand."""
        app = self._app
        if app.store.view.frame is None or app.store.view.disconnected is not None:
            app.say(NOT_CONNECTED, failed=True)
        else:
            app.knobs.select(name, app.store.view.limits)

    def action_step(self, direction: int) -> None:
        """Turn the knob in hand."""
        self._app.knobs.step(direction)

    def action_digit(self, digit: int) -> None:
        """Type a number."""
        self._app.knobs.type(str(digit))

    def action_erase(self) -> None:
        """Take a digit back."""
        self._app.knobs.erase()

    def action_drop(self) -> None:
        """Let the knob go."""
        self._app.knobs.drop()

    def action_apply(self) -> None:
        """Send the knob's value."""
        self._send(self._app.knobs.apply())

    def action_undo(self) -> None:
        """Take the last change back, unless someone else changed a setting since."""
        self._send(self._app.knobs.undo())

    def offer(self, changes: Mapping[str, Value]) -> None:
        """Say what these settings together would mean; enter sends them, any other key lets them be."""
        app = self._app
        if app.store.view.frame is None or app.store.view.disconnected is not None:
            app.say(NOT_CONNECTED, failed=True)
            return
        wanted = turns(changes, app.store.view.limits)
        if not wanted:
            app.say("these settings are in force already")
            return

        def follows() -> Consequence:
            frame = app.store.view.frame
            return consequence_of_all(wanted, frame) if frame is not None else Consequence(NOT_CONNECTED, "critical")

        app.prompt = Offer(Change(wanted).words, follows, lambda: self._send(app.knobs.turn(wanted)))

    def _send(self, order: tuple[Change, int] | None) -> None:
        if order is not None:
            self._app.run_worker(self._change(*order), group="commands", exit_on_error=False)

    async def _change(self, change: Change, revision: int) -> None:
        self._app.knobs.answered(await self._app.source.change(dict(change.changes), revision))


class Card:
    """Before and after the newest change, over the lower part of the page until it is closed."""

    def __init__(self, app: ConsoleApp) -> None:
        self._app = app
        self._closed: float | None = None
        """When the comparison that was closed began."""

    @property
    def open(self) -> bool:
        """There is one, and it was not closed."""
        comparison = self._app.shown_view.comparison
        return comparison is not None and comparison.began != self._closed

    def action_close(self) -> None:
        """Close this one; the next change has its own."""
        comparison = self._app.shown_view.comparison
        self._closed = comparison.began if comparison is not None else None

    def lines(self, view: View, cells: int) -> tuple[Line, ...]:
        """What is drawn; empty while there is none."""
        return tuple(card_lines(view.comparison, cells)) if view.comparison is not None and self.open else ()


class SettingsPanel:
    """All live settings over the lower part of the page. While it is open its actions go before the page's."""

    def __init__(self, app: ConsoleApp) -> None:
        self._app = app
        self.open = False
        self.place = 0
        """Of the selected row."""

    def action_settings(self) -> None:
        """Open or close."""
        self.open = not self.open

    def action_close(self) -> None:
        """Close."""
        self.open = False

    def action_move(self, rows: int) -> None:
        """Select another setting."""
        self.place = max(0, min(self.place + rows, len(LIVE_SETTINGS) - 1))

    def action_end(self, direction: int) -> None:
        """Select the first or the last one."""
        self.action_move(direction * len(LIVE_SETTINGS))

    def action_page(self, direction: int) -> None:
        """As :meth:`action_end`: there is one page."""
        self.action_end(direction)

    def action_inspect(self) -> None:
        """Take the selected setting in hand."""
        self._app.knob_hand.action_knob(LIVE_SETTINGS[self.place])

    def lines(self, cells: int, height: int) -> tuple[Line, ...]:
        """What is drawn on a terminal of that size; empty while it is closed."""
        if not self.open:
            return ()
        rows = max(3, height - ROWS_LEFT)
        lines = settings_panel(self._app.store.view.limits, self._app.knobs.edit, self.place, cells=cells, rows=rows)
        return tuple(lines)
