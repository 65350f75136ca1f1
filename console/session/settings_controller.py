"""Changes live settings: what the keys of a setting do, and the commands that are sent to the source."""

from __future__ import annotations

from collections.abc import Mapping

from slotdeck.console.keys.actions import Command, Handlers
from slotdeck.console.session.host import Host
from slotdeck.console.session.prompts import ProposalPrompt
from slotdeck.console.session.status_line import Message, StatusLine
from slotdeck.console.settings.change_preview import ChangePreview, preview_changes
from slotdeck.console.settings.changes import ChangeRequest, setting_changes
from slotdeck.console.settings.editor import SettingsEditor
from slotdeck.console.settings.values import Value
from slotdeck.console.sources.base import FrameSource
from slotdeck.console.state.store import Store
from slotdeck.engine.telemetry.frame import Frame

NOT_CONNECTED = "no engine is connected, so nothing can be changed"


class SettingsController:
    """Edits a setting, proposes several, sends changes and takes them back."""

    def __init__(self, source: FrameSource, store: Store, status: StatusLine, host: Host) -> None:
        self._source = source
        self._store = store
        self._status = status
        self._host = host
        self._not_connected: Message | None = None
        self.editor = SettingsEditor(status.say)
        self.handlers: Handlers = {
            Command.EDIT_SETTING: self.edit,
            Command.STEP: self.editor.step,
            Command.DIGIT: self.editor.type_digit,
            Command.ERASE: self.editor.erase,
            Command.APPLY: self.apply,
            Command.DROP: self.editor.drop,
            Command.UNDO: self.undo,
        }

    def on_frame(self, frame: Frame) -> None:
        """Take a new frame, which may confirm a change."""
        self._status.withdraw(self._not_connected)
        self.editor.on_frame(frame)

    def edit(self, name: str) -> None:
        """Begin to edit a setting, if it can be changed."""
        if self._refusal({name}) is None:
            self.editor.select(name, self._store.view.limits)

    def apply(self) -> None:
        """Send the edited value."""
        self._send(self.editor.apply())

    def undo(self) -> None:
        """Take the last change back, unless somebody else changed a setting since."""
        self._send(self.editor.undo())

    def propose(self, values: Mapping[str, Value]) -> Message | None:
        """Show what these settings together would do; enter applies them, any other key drops them.

        Returns the message that says why there is nothing to propose, or ``None``.
        """
        if (refusal := self._refusal(values)) is not None:
            return refusal
        wanted = setting_changes(values, self._store.view.limits)
        if not wanted:
            return self._status.say("these settings are in force already")

        def preview() -> ChangePreview:
            frame = self._store.view.frame
            return ChangePreview(NOT_CONNECTED, "critical") if frame is None else preview_changes(wanted, frame)

        description = ChangeRequest(wanted).description
        self._status.ask(ProposalPrompt(description, preview, lambda: self._send(self.editor.apply_all(wanted))))
        return None

    def _refusal(self, names: Mapping[str, Value] | set[str]) -> Message | None:
        """Why these settings cannot be changed now, said on the status line; ``None`` if they can."""
        view = self._store.view
        if view.frame is None or view.disconnected is not None:
            self._not_connected = self._status.say(NOT_CONNECTED, failed=True)
            return self._not_connected
        capabilities = self._source.capabilities
        if not capabilities.settings.issuperset(names):
            return self._status.say(capabilities.refusal or "this source cannot change the setting", failed=True)
        return None

    def _send(self, request: ChangeRequest | None) -> None:
        if request is not None:
            self._host.run_in_background(self._change(request), "commands")

    async def _change(self, request: ChangeRequest) -> None:
        self.editor.on_answer(await self._source.change(request.values, request.base))
