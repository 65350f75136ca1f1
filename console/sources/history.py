"""The recorded history as pages read it, and the one that this machine's engine writes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from slotdeck.engine.paths import history_path
from slotdeck.engine.telemetry.frame import Frame, FrameEvent
from slotdeck.engine.telemetry.history.reader import LOUD, History
from slotdeck.engine.telemetry.history.schema import ChunkSummary, RequestRecord


class RecordedHistory(Protocol):
    """What was recorded: frames, events and ended requests.

    All times are wall clock in seconds since the epoch; ranges include both ends. Calls read from a disk, so the
    console makes them in a thread. Every method raises :class:`~slotdeck.engine.telemetry.history.reader.HistoryError`.
    """

    def span(self) -> tuple[float, float] | None:
        """The first and the last recorded second; ``None`` if nothing is recorded yet."""
        ...

    def chunks(self, start: float, end: float) -> list[ChunkSummary]:
        """Summaries of ten seconds each, oldest first."""
        ...

    def frames(self, start: float, end: float) -> Iterator[Frame]:
        """The recorded frames, oldest first."""
        ...

    def frame_at(self, time: float) -> Frame | None:
        """The newest frame at or before ``time``."""
        ...

    def step(self, time: float, direction: int) -> Frame | None:
        """The frame after (``direction`` 1) or before (-1) ``time``; ``None`` at the end."""
        ...

    def events(
        self, start: float, end: float, kinds: Sequence[str] | None = None, last: int = 100_000
    ) -> list[FrameEvent]:
        """The events, oldest first. If there are more than ``last``, the newest ones."""
        ...

    def jump(self, time: float, direction: int, kinds: Sequence[str] = LOUD) -> FrameEvent | None:
        """The next event of one of ``kinds`` after (``direction`` 1) or before (-1) ``time``."""
        ...

    def requests(self, start: float, end: float) -> list[RequestRecord]:
        """Requests that ended in the range, oldest first."""
        ...


def local_history() -> RecordedHistory:
    """The history file of the engine on this machine. Nothing is opened before the first question."""
    return History(history_path())
