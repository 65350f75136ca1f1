"""The waiting queue: requests that hold neither a slot nor a block, in the order in which they will be admitted."""

from __future__ import annotations

from collections.abc import Iterator

from engine.core.request import Request


class WaitingQueue:
    """First come, first served. Its depth is enforced by the scheduler, which knows how many may enter at once."""

    def __init__(self) -> None:
        self._requests: dict[str, Request] = {}  # insertion order is queue order; removal by id is O(1)

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests.values())

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._requests

    @property
    def head(self) -> Request | None:
        return next(iter(self._requests.values()), None)

    def push(self, request: Request) -> None:
        self._requests[request.id] = request

    def remove(self, request_id: str) -> Request:
        """Take one out, wherever it stands. Raises KeyError."""
        return self._requests.pop(request_id)
