"""Request bodies. Each is limited in bytes and in time, and all of them together in bytes."""

from __future__ import annotations

import asyncio
from collections import Counter

from starlette.datastructures import Headers
from starlette.types import Receive

from slotdeck.engine.server.client_watch import ClientDisconnectedError
from slotdeck.engine.server.errors import TOO_MANY_BODIES, ApiError, unavailable
from slotdeck.engine.server.http_limits import HttpLimits


class Body:
    """One request body. Its bytes count in ``memory`` until ``release`` is called."""

    def __init__(self, memory: BodyMemory, user: str) -> None:
        self._memory, self._user = memory, user
        self._data = bytearray()

    def __len__(self) -> int:
        return len(self._data)

    @property
    def data(self) -> bytes | bytearray:
        return self._data

    def check(self, size: int) -> None:
        """Raise ApiError 503 if ``size`` more bytes would be too many, as ``add`` does."""
        self._memory.check(self._user, size)

    def add(self, chunk: bytes) -> None:
        """Append ``chunk``. Raises ApiError 503 if all bodies together, or those of this user, would be too large."""
        self._memory.take(self._user, len(chunk))
        self._data += chunk

    def release(self) -> None:
        """Forget the body. May be called again."""
        self._memory.give_back(self._user, len(self._data))
        self._data = bytearray()


class BodyMemory:
    """Counts the bytes of all bodies that are being read or tokenized, in all and for each user.

    Used on the asyncio loop only.
    """

    def __init__(self, max_bytes: int, max_bytes_per_user: int) -> None:
        self._max_bytes, self._max_bytes_per_user = max_bytes, max_bytes_per_user
        self._per_user: Counter[str] = Counter()
        self.held = 0
        """Bytes held now."""

    def check(self, user: str, size: int) -> None:
        """Raise ApiError 503 if ``size`` more bytes of ``user`` are too many."""
        mine = self._per_user[user] + size > self._max_bytes_per_user
        if mine or self.held + size > self._max_bytes:
            whose = "you have" if mine else "this server has"
            raise unavailable(f"{whose} too many large requests in progress, try again later", TOO_MANY_BODIES, 2)

    def take(self, user: str, size: int) -> None:
        self.check(user, size)
        self._per_user[user] += size
        self.held += size

    def give_back(self, user: str, size: int) -> None:
        self.held -= size
        self._per_user[user] -= size
        if not self._per_user[user]:
            del self._per_user[user]


async def read_body(body: Body, headers: Headers, receive: Receive, limits: HttpLimits) -> None:
    """Read the request body into ``body``. Reads nothing if the declared length is already too large.

    Raises ApiError: 413 if the body is larger than ``limits.max_body``, 408 if it is not complete within
    ``limits.body_timeout`` seconds, 503 if too many bytes of bodies are held already. Raises ClientDisconnectedError.
    """
    # A refusal is sent while the client still writes. uvicorn then reads and discards the rest.
    too_large = ApiError(413, f"the body is larger than {limits.max_body} bytes", code="body_too_large")
    declared = headers.get("content-length", "")
    if declared.isdecimal():
        if int(declared) > limits.max_body:
            raise too_large
        body.check(int(declared))
    try:
        async with asyncio.timeout(limits.body_timeout):
            more = True
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnectedError
                chunk = message.get("body", b"")
                if len(body) + len(chunk) > limits.max_body:
                    raise too_large
                body.add(chunk)
                more = message.get("more_body", False)
    except TimeoutError:
        raise ApiError(
            408,
            f"the body was not complete after {limits.body_timeout:g} s",
            code="body_timeout",
            headers={"connection": "close"},
        ) from None
