"""Changes the user's settings for a demonstration and restores them, whatever happens.

A separate guard process (``python -m slotdeck.console.demo.settings_lease SOCKET``) gets the user's values before the
first change and waits on a pipe. If the pipe closes without the line ``done``, the demonstration has died, and the
guard restores the values.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from slotdeck.console.client.admin import AdminClient, AdminError

SOURCE = "demo"
RETRY_SECONDS = 30.0
"""How long a refused change is tried again. A pool can only shrink when running requests leave room."""


class SettingsLease:
    """The user's live settings, as they were when this object was made."""

    def __init__(self, admin: AdminClient) -> None:
        self._admin = admin
        rows = admin.call("GET", "/admin/settings")["settings"]
        self.original: dict[str, Any] = {
            row["name"]: row["value"] for row in rows if row.get("live") and row.get("value") is not None
        }
        self._changed: set[str] = set()
        self._guard: subprocess.Popen[bytes] | None = None

    def change(self, wanted: dict[str, Any]) -> None:
        """Change these settings, and restore those that only an earlier call changed.

        Raises AdminError with the engine's reason, or NoEngineError.
        """
        if self._guard is None:
            self._guard = _start_guard(self._admin.path, self.original)
        target = {name: self.original[name] for name in self._changed} | wanted
        self._changed |= set(wanted)
        change(self._admin, target)

    def give_back(self) -> None:
        """Restore the user's values and end the guard.

        Raises AdminError or NoEngineError; the guard then goes on trying.
        """
        if self._changed:
            change_with_retries(self._admin, {name: self.original[name] for name in self._changed})
            self._changed = set()
        guard, self._guard = self._guard, None
        if guard is not None and guard.stdin is not None:
            guard.stdin.write(b"done\n")
            guard.stdin.close()
            guard.wait()


def change(admin: AdminClient, target: dict[str, Any]) -> None:
    """Change all of them in one call. Raises AdminError or NoEngineError."""
    if target:
        admin.call("PATCH", "/admin/settings", {"changes": target, "source": SOURCE})


def change_with_retries(admin: AdminClient, target: dict[str, Any], timeout: float = RETRY_SECONDS) -> None:
    """As :func:`change`, but tried again while the engine refuses, for ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            return change(admin, target)
        except AdminError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.25)


def _start_guard(socket: Path, original: dict[str, Any]) -> subprocess.Popen[bytes]:
    """Start the guard in its own session, because ctrl+c in the terminal must not end it."""
    command = [sys.executable, "-P", "-m", "slotdeck.console.demo.settings_lease", str(socket)]
    guard = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    assert guard.stdin is not None
    guard.stdin.write(json.dumps(original).encode() + b"\n")
    guard.stdin.flush()
    return guard


def watch(socket: Path) -> None:
    """Run the guard: restore the settings unless the line ``done`` arrives."""
    original = json.loads(sys.stdin.readline() or "{}")
    if sys.stdin.readline() != "done\n":
        change_with_retries(AdminClient(socket), original)


if __name__ == "__main__":
    watch(Path(sys.argv[1]))
