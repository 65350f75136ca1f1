"""Leaving the console: the question whether the engine stops too, its drain, and a forced stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Literal

from slotdeck.console.session.host import Host
from slotdeck.console.session.session import Session

FORCED_EXIT_SECONDS = 3.0
"""Longest wait for an engine that was told to stop at once."""

LeaveChoice = Literal["stop", "leave", "stay", "force"]


class Leaving:
    """What happens between the first ``q`` and the end. ``hosted``: this console started the engine."""

    def __init__(self, session: Session, host: Host, *, hosted: bool, ask: Callable[[], None]) -> None:
        self._session = session
        self._host = host
        self._hosted = hosted
        self._ask = ask
        self.stage: Literal["", "asking", "stopping", "forcing"] = ""
        self.problem = ""
        """Why the engine did not stop; the question shows it."""

    @property
    def session(self) -> Session:
        """The session that would be left."""
        return self._session

    @property
    def stopping(self) -> bool:
        """The engine was told to stop, so the end of its frames ends the console."""
        return self.stage in ("stopping", "forcing")

    @property
    def exit_code(self) -> int:
        """1 if the engine ended without having been told to, else 0."""
        end = self._session.store.view.end
        return 0 if end is None or end.clean else 1

    def quit(self) -> None:
        """Quit. Only an engine that this console started may be stopped too, and only after asking."""
        view = self._session.store.view
        if not self._hosted or view.frame is None or view.disconnected is not None:
            self._host.end(self.exit_code)
            return
        self.stage, self.problem = "asking", ""
        self._ask()

    def choose(self, choice: LeaveChoice) -> bool:
        """Take the answer to the question. True closes the question."""
        closes = False
        if choice == "leave" or self._session.store.view.disconnected is not None:
            self._host.end(self.exit_code)
        elif choice == "stay" and self.stage == "asking":
            self.stage = ""
            closes = True
        elif choice == "force" and self.stage == "forcing":
            self._host.end(0)
        elif choice == "force" or (choice == "stop" and self.stage == "asking"):
            self.stage = "forcing" if choice == "force" else "stopping"
            self._host.run_in_background(self._stop_engine(force=choice == "force"), "stopping")
        return closes

    async def _stop_engine(self, *, force: bool) -> None:
        """Ask the engine to end. The end of its frames ends the console; a refusal goes back to the question."""
        store = self._session.store
        answer = await self._session.source.shutdown(force)
        if not answer.ok and store.view.disconnected is None:
            self.stage = "asking"
            self.problem = f"the engine does not stop: {answer.message or 'no reason given'}"
        elif force or store.view.disconnected is not None:
            if force:
                await asyncio.sleep(FORCED_EXIT_SECONDS)
            self._host.end(0)
