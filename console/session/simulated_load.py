"""The key that starts and stops simulated users."""

from __future__ import annotations

import asyncio

from slotdeck.console.processes.simulated_users import LoadControl
from slotdeck.console.session.status_line import StatusLine


class SimulatedLoad:
    """Starts and stops simulated users. ``control`` is ``None`` where there is no engine on this machine for them."""

    def __init__(self, control: LoadControl | None, status: StatusLine) -> None:
        self._control = control
        self._status = status

    @property
    def available(self) -> bool:
        """Simulated users can be started here."""
        return self._control is not None

    @property
    def users(self) -> int | None:
        """How many run now; ``None`` while none do."""
        return self._control.users if self._control is not None and self._control.running else None

    async def toggle(self) -> None:
        """Start the users, or stop them if they run."""
        if self._control is None:
            self._status.say("simulated users need an engine on this machine", failed=True)
            return
        try:
            if self._control.running:
                await self.stop()
                self._status.say("the simulated users were stopped")
            else:
                self._control.start()
                self._status.say("")
        except OSError as error:
            self._status.say(f"simulated users: {error}", failed=True)

    async def stop(self) -> None:
        """Stop the users, if there are any."""
        if self._control is not None:
            await asyncio.to_thread(self._control.stop)

    def check(self) -> None:
        """Say so if the users ended by themselves."""
        if self._control is not None and (ended := self._control.ended_with()) is not None:
            self._status.say(ended, failed=True)
