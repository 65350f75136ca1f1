"""The parts of the console, each imported and made when it is first needed, which is after the first paint."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slotdeck.console.app import ConsoleApp
    from slotdeck.console.keys.keymap import Keymap
    from slotdeck.console.session.leaving import Leaving
    from slotdeck.console.session.settings_controller import Card, SettingsController, SettingsPanel
    from slotdeck.console.session.status import StatusLine
    from slotdeck.console.settings.live_settings import Knobs
    from slotdeck.console.state.store import Store
    from slotdeck.console.terminal.configuration import ConsoleConfiguration


class Parts:
    """What the app keeps beside the screen. It sets ``clock`` and ``configuration`` first."""

    clock: Callable[[], float]
    """Monotonic seconds."""
    configuration: ConsoleConfiguration

    @cached_property
    def store(self) -> Store:
        """What is known of the engine."""
        from slotdeck.console.state.store import Store

        return Store(self.clock)

    @cached_property
    def knobs(self) -> Knobs:
        """A setting in hand, the change under way."""
        from slotdeck.console.settings.live_settings import Knobs

        return Knobs()

    @cached_property
    def keymap(self) -> Keymap:
        """Which key means what."""
        from slotdeck.console.keys.keymap import Keymap

        return Keymap(self.configuration.keys)

    @cached_property
    def status(self) -> StatusLine:
        """The sentence on the status line."""
        from slotdeck.console.session.status import StatusLine

        return StatusLine(self.clock)

    @cached_property
    def knob_hand(self) -> SettingsController:
        """What the keys of a knob do."""
        from slotdeck.console.session.settings_controller import SettingsController

        return SettingsController(self._app)

    @cached_property
    def panel(self) -> SettingsPanel:
        """All settings."""
        from slotdeck.console.session.settings_controller import SettingsPanel

        return SettingsPanel(self._app)

    @cached_property
    def card(self) -> Card:
        """Before and after a change."""
        from slotdeck.console.session.settings_controller import Card

        return Card(self._app)

    @cached_property
    def leaving(self) -> Leaving:
        """From the first ``q`` to the end."""
        from slotdeck.console.session.leaving import Leaving

        return Leaving(self._app)

    @property
    def _app(self) -> ConsoleApp:
        from slotdeck.console.app import ConsoleApp

        assert isinstance(self, ConsoleApp)
        return self
