"""Leaving a console that started its engine: the question, the drain, the force."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from slotdeck.console.app import ConsoleApp

FORCED_EXIT_SECONDS = 3.0
"""Longest wait for an engine that was told to stop at once."""


class Leaving:
    """What goes on between the first ``q`` and the end."""

    def __init__(self, app: ConsoleApp) -> None:
        self._app = app
        self.stage: Literal["", "asking", "stopping", "forcing"] = ""
        self.problem = ""
        """Why the engine did not stop, for the question."""

    @property
    def stopping(self) -> bool:
        """The engine was told to stop, so the end of its frames ends the console."""
        return self.stage in ("stopping", "forcing")

    @property
    def exit_code(self) -> int:
        """1 if the engine ended and nobody told it to."""
        end = self._app.store.view.end
        return 0 if end is None or end.clean else 1

    def action_leave(self) -> None:
        """Quit. A hosted engine may be stopped too, which is always asked; any other goes on serving."""
        view = self._app.store.view
        if not self._app.hosted or view.frame is None or view.disconnected is not None:
            self._app.exit(self.exit_code)
            return
        from slotdeck.console.screens.leave import LeaveScreen

        self.stage, self.problem = "asking", ""
        self._app.push_screen(LeaveScreen(self._app.colours, ascii_only=self._app.ascii_only))

    def choose(self, choice: str) -> None:
        """The answer to the question: ``stop``, ``leave``, ``stay`` or ``force``."""
        app = self._app
        if choice == "leave" or app.store.view.disconnected is not None:
            app.exit(self.exit_code)
        elif choice == "stay" and self.stage == "asking":
            self.stage = ""
            app.pop_screen()
        elif choice == "force" and self.stage == "forcing":
            app.exit(0)
        elif choice == "force" or (choice == "stop" and self.stage == "asking"):
            self.stage = "forcing" if choice == "force" else "stopping"
            app.run_worker(self._stop_engine(force=choice == "force"), group="stopping", exit_on_error=False)
        app.draw()

    async def _stop_engine(self, *, force: bool) -> None:
        """Ask the engine to end; the end of its frames ends the console. A refusal goes back to the question."""
        app = self._app
        answer = await app.source.shutdown(force)
        if not answer.ok and app.store.view.disconnected is None:
            self.stage = "asking"
            self.problem = f"the engine does not stop: {answer.message or 'no reason given'}"
        elif force or app.store.view.disconnected is not None:
            if force:
                await asyncio.sleep(FORCED_EXIT_SECONDS)
            app.exit(0)
