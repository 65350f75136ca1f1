"""A synchronous client of the admin API over the engine's unix socket, for commands that need one answer.

Standard library only, until a frame is read: `slotdeck` calls it before anything else, and must start fast.
"""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotdeck.console.client import messages

if TYPE_CHECKING:
    from slotdeck.engine.telemetry.frame import Frame


class NoEngineError(ConnectionError):
    """Nothing listens on the admin socket."""


class AdminError(RuntimeError):
    """The engine refused a call or did not answer it. The message says why."""


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


class AdminClient:
    """The engine behind the admin socket at ``path``. ``timeout`` is in seconds, for each call."""

    def __init__(self, path: Path, timeout: float = 5.0) -> None:
        self.path = path
        self._timeout = timeout

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request and return the decoded JSON answer. Raises NoEngineError or AdminError."""
        payload = None if body is None else json.dumps(body).encode()
        headers = {} if body is None else {"Content-Type": "application/json"}
        with self._connection(self._timeout) as connection:
            connection.request(method, path, payload, headers)
            response = connection.getresponse()
            content = response.read()
        try:
            document = json.loads(content) if content else None
        except ValueError as error:
            raise AdminError(f"{messages.UNREADABLE}: {path} is not JSON") from error
        if response.status >= 400:
            raise AdminError(f"{method} {path}: {messages.refusal(response.status, document)}")
        return document

    def frame(self) -> Frame:
        """The current frame. Raises the exceptions of :meth:`call`."""
        from pydantic import ValidationError

        from slotdeck.engine.telemetry.frame import Frame

        try:
            return Frame.model_validate(self.call("GET", "/admin/frame"))
        except ValidationError as error:
            raise AdminError(messages.unreadable(messages.validation_problem(error.errors()))) from error

    def stream(self, rate: float) -> Iterator[Frame]:
        """Yield ``rate`` frames a second until the engine stops. Raises the exceptions of :meth:`call`."""
        from pydantic import ValidationError

        from slotdeck.engine.telemetry.frame import Frame

        with self._connection(max(self._timeout, 4 / rate)) as connection:
            connection.request("GET", f"/admin/stream?rate={rate:g}")
            response = connection.getresponse()
            if response.status != 200:
                raise AdminError(messages.refusal(response.status, None))
            while line := response.readline():
                try:
                    frame = Frame.model_validate_json(line)
                except ValidationError as error:
                    raise AdminError(messages.unreadable(messages.validation_problem(error.errors()))) from error
                yield frame

    def running(self) -> Frame | None:
        """The frame of the running engine; ``None`` if there is none. Raises AdminError if it does not answer."""
        try:
            return self.frame()
        except NoEngineError:
            return None

    @contextmanager
    def _connection(self, timeout: float) -> Iterator[http.client.HTTPConnection]:
        """A connection that is closed at the end. Raises NoEngineError or AdminError for whatever goes wrong on it."""
        connection = _UnixConnection(self.path, timeout)
        try:
            yield connection
        except (FileNotFoundError, ConnectionRefusedError) as error:
            raise NoEngineError(messages.no_engine(self.path)) from error
        except TimeoutError as error:
            raise AdminError(messages.silent(timeout)) from error
        except (OSError, http.client.HTTPException) as error:
            raise AdminError(f"{messages.BROKEN}: {error or type(error).__name__}") from error
        finally:
            connection.close()
