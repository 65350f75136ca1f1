"""The two listening sockets, bound before the model is loaded, so that a start that cannot work fails at once."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
from pathlib import Path
from types import TracebackType
from typing import Any

from slotdeck.engine.paths import default_socket
from slotdeck.engine.server.keys import load_api_keys
from slotdeck.engine.server.security import is_loopback
from slotdeck.engine.settings import SettingsError, StartSettings

ADDRESS_TAKEN = 3
"""Exit code: the port or the admin socket is in use or cannot be bound."""
MAX_SOCKET_PATH = 107
"""Bytes in the path of a unix socket on Linux."""
SEND_BUFFER = 256 << 10
"""Bytes that the kernel keeps for a client that does not read. Its default would be megabytes for each."""


class ListenError(RuntimeError):
    """An address cannot be bound. The message is one line for the admin. ``exit_code`` is that of the process."""

    exit_code = ADDRESS_TAKEN


class Listeners:
    """A bound TCP socket, a bound unix socket, and the lock of the latter. A context manager that frees all three.

    Until the server runs, clients of the TCP socket wait, while the unix socket refuses connections: a console can tell
    that the engine is still loading. ``url`` is the base URL of the API without ``/v1``. For a bind to all addresses it
    has the address by which other machines reach this one.
    """

    def __init__(self, tcp: socket.socket, admin: socket.socket, admin_path: Path, lock: int, host: str) -> None:
        self.tcp = tcp
        self.admin = admin
        self.admin_path = admin_path
        self._lock = lock
        host = reachable_host(host)
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{tcp.getsockname()[1]}"

    def __enter__(self) -> Listeners:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close both sockets, remove the socket file and release the lock. The lock file stays, empty."""
        self.tcp.close()
        self.admin.close()
        if self._lock >= 0:
            self.admin_path.unlink(missing_ok=True)
            os.ftruncate(self._lock, 0)
            os.close(self._lock)
            self._lock = -1


def open_listeners(settings: StartSettings) -> Listeners:
    """Bind the port of the API and the admin socket.

    Raises SettingsError if the key file cannot be read, or if other machines can reach ``host`` and no keys are set.
    Raises ListenError if the port is in use or another engine of this user holds the socket.
    """
    keys = load_api_keys(settings)
    family, address = _resolve(settings.host, settings.port)
    if not keys and not is_loopback(str(address[0])):
        raise SettingsError(
            f"host {settings.host} can be reached from other machines: give at least one --api-key LABEL=KEY "
            "(or --api-key-file), or keep --host 127.0.0.1"
        )
    with contextlib.ExitStack() as undo:
        # asyncio turns Nagle's algorithm off only if the protocol is named. With it on, an answer waits 40 ms.
        tcp = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        undo.callback(tcp.close)
        _bind_tcp(tcp, address, settings)
        path = settings.socket or default_socket()
        lock = _lock(path)
        undo.callback(os.close, lock)
        admin = _bind_unix(path)
        undo.pop_all()
    return Listeners(tcp, admin, path, lock, settings.host)


def reachable_host(host: str) -> str:
    """``host``, or for a bind to all addresses the one by which other machines reach this one, or else loopback."""
    if host not in ("", "0.0.0.0", "::"):
        return host
    # Connecting a datagram socket sends nothing. It only chooses the route, and with it the local address.
    routes = [(socket.AF_INET, "192.0.2.1")] + ([(socket.AF_INET6, "2001:db8::1")] if host == "::" else [])
    for family, somewhere in routes:
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((somewhere, 9))
            return str(probe.getsockname()[0])
    return "127.0.0.1"


def _resolve(host: str, port: int) -> tuple[int, Any]:
    try:
        found = socket.getaddrinfo(host or "0.0.0.0", port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ListenError(f"--host {host}: no such address on this machine ({error})") from error
    family, _, _, _, address = min(found, key=lambda item: item[0] != socket.AF_INET)
    return family, address


def _bind_tcp(tcp: socket.socket, address: Any, settings: StartSettings) -> None:
    tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    tcp.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)  # accepted connections inherit it
    try:
        tcp.bind(address)
        # Two sockets may be bound to one port as long as neither listens, so only listening makes it ours.
        tcp.listen()
    except OSError as error:
        where = f"port {settings.port} on {settings.host}"
        reasons = {
            errno.EADDRINUSE: f"{where} is in use by another program: stop that one, or choose another --port",
            errno.EADDRNOTAVAIL: f"{settings.host} is not an address of this machine: choose another --host",
            errno.EACCES: f"{where} needs privileges: choose a --port of 1024 or more",
        }
        raise ListenError(reasons.get(error.errno or 0, f"cannot listen on {where}: {error}")) from error


def _lock(path: Path) -> int:
    """Take the lock file beside the socket. Its holder owns the socket, and keeps it until the process ends."""
    if len(os.fsencode(path)) > MAX_SOCKET_PATH:
        raise ListenError(f"{path}: the path of a socket has at most {MAX_SOCKET_PATH} bytes, choose --socket")
    lock_path = path.with_name(path.name + ".lock")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path == default_socket():
            path.parent.chmod(0o700)
        lock = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ListenError(f"{path.parent}: the admin socket cannot be made there ({error}), choose --socket") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        pid = os.read(lock, 32).decode("ascii", "replace").strip() or "unknown"
        os.close(lock)
        raise ListenError(
            f"an engine is running already (pid {pid}, socket {path}): attach with 'slotdeck attach', stop it, "
            "or give this one another --socket"
        ) from error
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return lock


def _bind_unix(path: Path) -> socket.socket:
    """Bind the socket at ``path``. The lock is held, so an existing socket file belongs to an engine that has died."""
    admin = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)  # the file must be private from the moment it exists
    try:
        if path.is_socket():
            path.unlink()
        admin.bind(str(path))
    except OSError as error:
        admin.close()
        raise ListenError(f"{path}: the admin socket cannot be made ({error}), choose --socket") from error
    finally:
        os.umask(mask)
    return admin
