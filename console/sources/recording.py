"""A recorded stream of frames as a source, and the writer of such files.

A recording has one frame in JSON a line, and is compressed if its name ends in ``.gz``. Tests and screenshots use
recordings of real runs.
"""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from slotdeck.console.sources.base import Answer, Capabilities, Disconnected, Update
from slotdeck.engine.telemetry.frame import Frame

if TYPE_CHECKING:
    from slotdeck.engine.telemetry.requests.detail import RequestDetail

MAX_PAUSE = 5.0
"""Seconds. Longer gaps in a recording are shortened to this."""


def _open(path: Path, mode: str) -> IO[bytes]:
    return cast("IO[bytes]", gzip.open(path, mode) if path.suffix == ".gz" else path.open(mode))


def read_frames(path: Path) -> Iterator[Frame]:
    """The frames of a recording in order. Raises OSError, and pydantic.ValidationError for a broken line."""
    with _open(path, "rb") as file:
        for line in file:
            if line.strip():
                yield Frame.model_validate_json(line)


def write_frames(path: Path, frames: Iterable[Frame]) -> int:
    """Write one frame a line. Returns the number of frames. Raises OSError."""
    number = 0
    with _open(path, "wb") as file:
        for frame in frames:
            file.write(frame.model_dump_json(exclude_defaults=True).encode() + b"\n")
            number += 1
    return number


NOT_CHANGEABLE = "a recording cannot be changed"


class RecordingSource:
    """Plays recorded frames.

    ``speed`` 1 keeps the recorded pace, 2 plays twice as fast, and None gives all frames at once. After the last frame
    the source gives ``ending`` if there is one, and then stays silent.
    """

    def __init__(
        self, frames: Path | Iterable[Frame], *, speed: float | None = None, ending: Disconnected | None = None
    ) -> None:
        self._frames = frames
        self._speed = speed
        self._ending = ending

    @property
    def capabilities(self) -> Capabilities:
        """A recording takes no commands."""
        return Capabilities(refusal=NOT_CHANGEABLE)

    async def updates(self) -> AsyncIterator[Update]:
        """See :class:`FrameSource`."""
        before: float | None = None
        for frame in read_frames(self._frames) if isinstance(self._frames, Path) else self._frames:
            if self._speed is not None and before is not None:
                await asyncio.sleep(min(max(0.0, frame.time - before), MAX_PAUSE) / self._speed)
            before = frame.time
            yield frame
        if self._ending is not None:
            yield self._ending
        await asyncio.Event().wait()

    async def change(self, changes: dict[str, Any], revision: int | None) -> Answer:
        """Always refused."""
        return Answer(False, message=NOT_CHANGEABLE)

    async def cancel(self, request_id: str) -> Answer:
        """Always refused."""
        return Answer(False, message=NOT_CHANGEABLE)

    async def request(self, request_id: str) -> RequestDetail | Answer:
        """Always refused: a recording has frames, not the steps of each request."""
        return Answer(False, message="a recording does not hold what each step did to a request")

    async def shutdown(self, force: bool) -> Answer:
        """Always refused: there is no engine."""
        return Answer(False, message="a recording has no engine to stop")
