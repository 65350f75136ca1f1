"""What every source of frames offers the console.

A source yields whole frames, reports when the connection is lost, and takes the few commands that a console may give.
An engine is one kind of source and a recording is another. No page knows which kind it shows.
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
    """How it ended in a few words, such as ``signal 9, out of memory?``; empty if unknown."""
    clean: bool = False
    """The engine was told to stop."""
    log: Path | None = None
    """The log file with its last lines, if there is one."""

    @property
    def sentence(self) -> str:
        """One sentence to print in the shell after the console has ended."""
        how = f" ({self.how})" if self.how else ""
        return f"the engine has ended{how}" + (f"; its log: {self.log}" if self.log is not None else "")


@dataclass(frozen=True)
class Disconnected:
    """No frames come at present; ``reason`` is a short sentence. The source keeps trying unless ``final`` is set."""

    reason: str
    final: bool = False
    end: EngineEnd | None = None
    """Set once it is known that the process has ended, and not only the connection to it."""


@dataclass(frozen=True)
class Past:
    """Earlier frames, one for each second, oldest first, so that plots do not begin empty.

    They come from the engine that sent the last frame. Some may be from times that the console has seen already.
    """

    frames: tuple[Frame, ...]


Update = Frame | Past | Disconnected


@dataclass(frozen=True)
class Capabilities:
    """Which commands a source takes. The console refuses the others at once, with ``refusal`` as the reason."""

    settings: frozenset[str] = frozenset()
    """Names of the live settings that can be changed."""
    cancel: bool = False
    """Requests can be cancelled."""
    refusal: str = ""


@dataclass(frozen=True)
class Answer:
    """The result of a command. If ``ok`` is False nothing was changed, and ``message`` says why in one sentence."""

    ok: bool
    revision: int | None = None
    """Revision of the settings after an accepted change. A frame with at least this revision confirms the change."""
    message: str | None = None
    conflict: bool = False
    """Someone else changed a setting since the given revision."""
    unknown: bool = False
    """The command was sent and no answer came, so it may have been carried out although ``ok`` is False."""


class FrameSource(Protocol):
    """Gives frames and takes commands. If a command fails on the other side its answer says so; it never raises."""

    @property
    def capabilities(self) -> Capabilities:
        """Which commands this source takes."""
        ...

    def updates(self) -> AsyncIterator[Update]:
        """Frames and disconnections in order, as long as the console runs."""
        ...

    async def change(self, changes: dict[str, Any], revision: int | None) -> Answer:
        """Change live settings by name, all or none. With ``revision`` it fails if somebody else changed one since."""
        ...

    async def cancel(self, request_id: str) -> Answer:
        """Cancel one waiting or running request."""
        ...

    async def request(self, request_id: str) -> RequestDetail | Answer:
        """The history of one request so far, or an answer that is not ok if the source does not know the request."""
        ...

    async def shutdown(self, force: bool) -> Answer:
        """Ask the engine to drain and end. With ``force`` it cuts running requests off at once."""
        ...
