"""What every source of frames offers the console, whatever stands behind it.

A source yields whole frames and says when it lost its other side; it takes the few commands a console may give.
Other servers and recordings are further classes of this shape; no screen knows which one it looks at.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from slotdeck.engine.telemetry.frame import Frame

if TYPE_CHECKING:
    from slotdeck.engine.telemetry.requests.detail import RequestDetail


@dataclass(frozen=True)
class EngineEnd:
    """The engine's process is gone."""

    how: str = ""
    """A few words, empty if it is not known: ``signal 9, out of memory?``."""
    clean: bool = False
    """It was told to stop."""
    log: Path | None = None
    """Where its last lines are, if they are in a file."""

    @property
    def sentence(self) -> str:
        """For the shell, after the console."""
        how = f" ({self.how})" if self.how else ""
        return f"the engine has ended{how}" + (f"; its log: {self.log}" if self.log is not None else "")


@dataclass(frozen=True)
class Disconnected:
    """No frames at present: ``reason`` is a short sentence. The source goes on trying unless ``final``."""

    reason: str
    final: bool = False
    end: EngineEnd | None = None
    """Set once it is known that the process itself has ended, and not only the connection to it."""


@dataclass(frozen=True)
class Past:
    """Frames of a second each from before the first one that came, oldest first, for what is drawn over time.

    They are of the engine that gave the last frame, and may hold times that were seen already.
    """

    frames: tuple[Frame, ...]


Update = Frame | Past | Disconnected


@dataclass(frozen=True)
class Answer:
    """What came of a command. ``ok`` False: nothing was changed, and ``message`` says why in one sentence."""

    ok: bool
    revision: int | None = None
    """Of the settings after an accepted change; a frame with at least this revision confirms it."""
    message: str | None = None
    conflict: bool = False
    """Someone else changed a setting since the given revision."""
    unknown: bool = False
    """Not ok, but it may have been done all the same: the command was sent, and no answer came."""


class FrameSource(Protocol):
    """Frames in, commands out. Commands never raise for what can go wrong on the other side: they answer."""

    def updates(self) -> AsyncIterator[Update]:
        """Frames and disconnections in order, for as long as the console runs."""
        ...

    async def change(self, changes: dict[str, Any], revision: int | None) -> Answer:
        """Change live settings by name, all or none; with ``revision``, only if nobody else did meanwhile."""
        ...

    async def cancel(self, request_id: str) -> Answer:
        """End one request, waiting or running."""
        ...

    async def request(self, request_id: str) -> RequestDetail | Answer:
        """One request's life so far; an answer that is not ok if it is not known here."""
        ...

    async def shutdown(self, force: bool) -> Answer:
        """Ask the engine to drain and end; with ``force``, to end running requests at once."""
        ...
