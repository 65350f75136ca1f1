"""One source of frames, what is known from it, and what may be changed through it."""

from __future__ import annotations

from collections.abc import Callable

from slotdeck.console.drawing.cells import clean
from slotdeck.console.session.host import Host
from slotdeck.console.session.prompts import ConfirmPrompt
from slotdeck.console.session.settings_controller import SettingsController
from slotdeck.console.session.status_line import StatusLine
from slotdeck.console.sources.base import Disconnected, FrameSource
from slotdeck.console.sources.history import RecordedHistory
from slotdeck.console.state.store import Store
from slotdeck.engine.telemetry.frame import Frame


class Session:
    """Source, store and settings controller of one engine, and access to its recorded history."""

    def __init__(
        self,
        source: FrameSource,
        open_history: Callable[[], RecordedHistory],
        *,
        status: StatusLine,
        host: Host,
        clock: Callable[[], float],
    ) -> None:
        self.source = source
        self.open_history = open_history
        """Gives a reader of the recorded history. Each thread has one of its own."""
        self.store = Store(clock)
        self.settings = SettingsController(source, self.store, status, host)
        self._status = status
        self._host = host

    async def follow(self, on_first: Callable[[], object], on_lost: Callable[[], bool]) -> None:
        """Feed the store with whatever the source gives. Touches no widget.

        ``on_first`` is called after the first update, ``on_lost`` after each disconnection; True ends the following.
        """
        try:
            async for update in self.source.updates():
                first = self.store.version == 0
                self.store.apply(update)
                if first:
                    on_first()
                if isinstance(update, Frame):
                    self.settings.on_frame(update)
                elif isinstance(update, Disconnected) and on_lost():
                    return
        except Exception as error:
            reason = f"the console lost its source ({type(error).__name__}: {error})"
            self.store.apply(Disconnected(reason, final=True))

    def ask_cancel(self, request_id: str, user: str | None) -> None:
        """Ask, then cancel that request, whatever is selected by then."""
        capabilities = self.source.capabilities
        if not capabilities.cancel:
            self._status.say(capabilities.refusal or "this source cannot cancel requests", failed=True)
            return

        def confirmed() -> None:
            self._host.run_in_background(self._cancel(request_id, user), "commands")

        self._status.ask(ConfirmPrompt(f"cancel {clean(user or request_id)}?", "its stream ends now", confirmed))

    async def _cancel(self, request_id: str, user: str | None) -> None:
        answer = await self.source.cancel(request_id)
        who = clean(user or request_id)
        if answer.ok:
            self._status.say(f"{who} cancelled")
        else:
            self._status.say(f"{who} not cancelled: {answer.message or 'refused'}", failed=True)
