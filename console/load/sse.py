"""Parses server-sent events from raw bytes.

Lines end at CR LF or LF only. `str.splitlines`, which line readers use, would also split at U+2028 and similar
characters inside an answer.
"""

from __future__ import annotations

MAX_PENDING_BYTES = 4 << 20


class EventParser:
    """Takes bytes as they arrive and returns the data of each complete event. Comments and other fields are skipped."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> list[str]:
        """The events that ``chunk`` completes. Raises ValueError for a line that does not end within 4 MiB."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > MAX_PENDING_BYTES:
            raise ValueError("a line of the event stream does not end")
        events = []
        for raw in lines:
            line = raw.removesuffix(b"\r")
            if not line and self._data:
                events.append("\n".join(self._data))
                self._data = []
            elif line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" ").decode("utf-8", "replace"))
        return events
