"""A recorded stream of frames (NDJSON, gzip by name) as a source, and the writer of such files.

Tests and pictures are fed from recordings of real runs. A recording takes no commands.
"""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from slotdeck.console.sources.base import Answer, Disconnected, Update
from slotdeck.engine.telemetry.frame import Frame

if TYPE_CHECKING:
    from slotdeck.engine.telemetry.requests.detail import RequestDetail

MAX_PAUSE = 5.0
"""Seconds; longer holes, in which nothing was recorded, are passed over."""


def _open(path: Path, mode: str) -> IO[bytes]:
    return cast("IO[bytes]", gzip.open(path, mode) if path.suffix == ".gz" else path.open(mode))


def read_frames(path: Path) -> Iterator[Frame]:
    """The frames of a recording in order. Raises OSError, and pydantic.ValidationError at a broken line."""
    with _open(path, "rb") as file:
        for line in file:
            if line.strip():
                yield Frame.model_validate_json(line)


def write_frames(path: Path, frames: Iterable[Frame]) -> int:
    """Write frames one a line; returns how many. Raises OSError."""
    number = 0
    with _open(path, "wb") as file:
        for frame in frames:
            file.write(frame.model_dump_json(exclude_defaults=True).encode() + b"\n")
            number += 1
    return number


class RecordingSource:
    """Plays frames.

    ``speed`` 1 keeps the pace at which they were recorded, 2 plays twice as fast, None gives all at once. After the
    last frame ``ending`` is given if there is one, else the source stays silent.
    """

    def __init__(
        self, frames: Path | Iterable[Frame], *, speed: float | None = None, ending: Disconnected | None = None
    ) -> None:
        self._frames = frames
        self._speed = speed
        self._ending = ending

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
        """Refused: what is recorded is over."""
        return Answer(False, message="a recording cannot be changed")

    async def cancel(self, request_id: str) -> Answer:
        """Refused: what is recorded is over."""
        return Answer(False, message="a recording cannot be changed")

    async def request(self, request_id: str) -> RequestDetail | Answer:
        """Refused: frames are recorded, not the steps of each request."""
        return Answer(False, message="a recording does not hold what each step did to a request")

    async def shutdown(self, force: bool) -> Answer:
        """Refused: there is no engine."""
        return Answer(False, message="a recording has no engine to stop")
