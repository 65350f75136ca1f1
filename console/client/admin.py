"""Calls of the admin API over the engine's unix socket, for commands that need an answer and not a stream.

Standard library only, until a frame is to be read: `slotdeck` asks it before anything else, and a start must not wait
for imports.
"""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    """The engine behind one admin socket. ``timeout`` in seconds, per call."""

    def __init__(self, path: Path, timeout: float = 5.0) -> None:
        self.path = path
        self._timeout = timeout

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """The decoded JSON answer. Raises NoEngineError, or AdminError with the engine's own sentence."""
        connection = _UnixConnection(self.path, self._timeout)
        payload = None if body is None else json.dumps(body).encode()
        headers = {} if body is None else {"Content-Type": "application/json"}
        try:
            connection.request(method, path, payload, headers)
            response = connection.getresponse()
            content = response.read()
        except (FileNotFoundError, ConnectionRefusedError) as error:
            raise NoEngineError(f"no engine answers on {self.path}") from error
        except (OSError, http.client.HTTPException) as error:
            raise AdminError(f"the engine on {self.path} does not answer: {error or type(error).__name__}") from error
        finally:
            connection.close()
        try:
            document = json.loads(content) if content else None
        except ValueError as error:
            raise AdminError(f"{self.path} answered {path} with something that is not JSON") from error
        if response.status >= 400:
            problem = document.get("error") if isinstance(document, dict) else None
            reason = problem.get("message") if isinstance(problem, dict) else None
            raise AdminError(f"{method} {path}: {reason or f'HTTP {response.status}'}")
        return document

    def frame(self) -> Frame:
        """The engine's picture of now. Raises as :meth:`call`."""
        from pydantic import ValidationError

        from slotdeck.engine.telemetry.frame import Frame

        try:
            return Frame.model_validate(self.call("GET", "/admin/frame"))
        except ValidationError as error:
            raise AdminError("the engine that runs speaks another version of Slotdeck; restart it") from error

    def stream(self, rate: float) -> Iterator[Frame]:
        """Frames as they come, ``rate`` a second, until the engine stops. Raises as :meth:`call`."""
        from pydantic import ValidationError

        from slotdeck.engine.telemetry.frame import Frame

        connection = _UnixConnection(self.path, max(self._timeout, 4 / rate))
        try:
            connection.request("GET", f"/admin/stream?rate={rate:g}")
            response = connection.getresponse()
            if response.status != 200:
                raise AdminError(f"the engine refuses its stream: HTTP {response.status}")
            while line := response.readline():
                yield Frame.model_validate_json(line)
        except (FileNotFoundError, ConnectionRefusedError) as error:
            raise NoEngineError(f"no engine answers on {self.path}") from error
        except ValidationError as error:
            raise AdminError("the engine that runs speaks another version of Slotdeck; restart it") from error
        except (OSError, http.client.HTTPException) as error:
            raise AdminError(f"the engine on {self.path} fell silent: {error or type(error).__name__}") from error
        finally:
            connection.close()

    def running(self) -> Frame | None:
        """The frame of a running engine, ``None`` when there is none. Raises AdminError when it is silent."""
        try:
            return self.frame()
        except NoEngineError:
            return None
