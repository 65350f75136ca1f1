"""The two sockets, taken before the model is loaded, so that a start that cannot work fails at once and says why."""

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
"""Exit code: the port or the admin socket is in use, or cannot be had."""
MAX_SOCKET_PATH = 107
SEND_BUFFER = 256 << 10
"""Bytes the kernel keeps for a client that does not read; left to itself it would take megabytes for each."""


class ListenError(RuntimeError):
    """An address cannot be had. The message is one line for the admin; ``exit_code`` is the process's."""

    exit_code = ADDRESS_TAKEN


class Listeners:
    """A bound TCP socket and a bound unix socket with its lock. A context manager: leaving it frees all three.

    TCP clients that come before the server runs wait; the unix socket refuses them, so that a console can tell.
    ``url`` is the API's base URL without ``/v1``; of a bind to all addresses the one that other machines know.
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
        """Close both sockets, remove the socket file, release the lock. The lock's file stays, empty."""
        self.tcp.close()
        self.admin.close()
        if self._lock >= 0:
            self.admin_path.unlink(missing_ok=True)
            os.ftruncate(self._lock, 0)
            os.close(self._lock)
            self._lock = -1


def open_listeners(settings: StartSettings) -> Listeners:
    """Take the API's port and the admin socket.

    Raises SettingsError when keys are unreadable, or are missing for a bind that other machines can reach;
    ListenError when the port is in use or another engine of this user holds the socket.
    """
    keys = load_api_keys(settings)
    family, address = _resolve(settings.host, settings.port)
    if not keys and not is_loopback(str(address[0])):
        raise SettingsError(
            f"host {settings.host} can be reached from other machines: give at least one --api-key LABEL=KEY "
            "(or --api-key-file), or keep --host 127.0.0.1"
        )
    with contextlib.ExitStack() as undo:
        # asyncio turns Nagle's algorithm off only where the protocol is named; with it, an answer waits 40 ms.
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
    """``host``, or for a bind to all addresses the one that other machines know this one by, else loopback."""
    if host not in ("", "0.0.0.0", "::"):
        return host
    # Connecting a datagram socket sends nothing: it only chooses the route, and with it the address.
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
        # Two sockets may be bound to one port as long as neither listens; only listening makes it ours.
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
    """The lock beside the socket, held as long as the process lives: who has it owns the socket."""
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
    """The lock is held, so a socket file that exists is left from an engine that died."""
    admin = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)  # the file is private from its first instant
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
