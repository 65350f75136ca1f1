"""Settings borrowed from the user and given back, whatever becomes of the demonstration.

A guard process of its own (``python -m slotdeck.console.demo.settings_lease SOCKET``) gets the user's values before the
first change. It waits on a pipe. If the pipe closes before the borrower said that all is well, the borrower has died,
and the guard gives the values back.
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
PATIENCE = 30.0
"""Seconds for which a refusal is tried again: a pool shrinks only when what runs leaves room."""


class SettingsLease:
    """The live settings of the engine behind ``admin``, as they are now."""

    def __init__(self, admin: AdminClient) -> None:
        self._admin = admin
        rows = admin.call("GET", "/admin/settings")["settings"]
        self.original: dict[str, Any] = {
            row["name"]: row["value"] for row in rows if row.get("live") and row.get("value") is not None
        }
        self._changed: set[str] = set()
        self._guard: subprocess.Popen[bytes] | None = None

    def change(self, wanted: dict[str, Any]) -> None:
        """Put these in force; what an earlier change touched and this one does not goes back to the user's value.

        Raises AdminError, or NoEngineError, with the engine's reason.
        """
        if self._guard is None:
            self._guard = _start_guard(self._admin.path, self.original)
        target = {name: self.original[name] for name in self._changed} | wanted
        self._changed |= set(wanted)
        change(self._admin, target)

    def give_back(self) -> None:
        """Put the user's values in force and send the guard away. Raises as :meth:`change`; the guard then tries on."""
        if self._changed:
            change_patiently(self._admin, {name: self.original[name] for name in self._changed})
            self._changed = set()
        guard, self._guard = self._guard, None
        if guard is not None and guard.stdin is not None:
            guard.stdin.write(b"done\n")
            guard.stdin.close()
            guard.wait()


def change(admin: AdminClient, target: dict[str, Any]) -> None:
    """One call for all of them. Raises AdminError or NoEngineError."""
    if target:
        admin.call("PATCH", "/admin/settings", {"changes": target, "source": SOURCE})


def change_patiently(admin: AdminClient, target: dict[str, Any], patience: float = PATIENCE) -> None:
    """As :func:`change`, tried again while the engine refuses."""
    deadline = time.monotonic() + patience
    while True:
        try:
            return change(admin, target)
        except AdminError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.25)


def _start_guard(socket: Path, original: dict[str, Any]) -> subprocess.Popen[bytes]:
    """In a session of its own: ctrl+c in the terminal is not meant for it."""
    command = [sys.executable, "-P", "-m", "slotdeck.console.demo.settings_lease", str(socket)]
    guard = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    assert guard.stdin is not None
    guard.stdin.write(json.dumps(original).encode() + b"\n")
    guard.stdin.flush()
    return guard


def watch(socket: Path) -> None:
    """The guard's whole life."""
    original = json.loads(sys.stdin.readline() or "{}")
    if sys.stdin.readline() != "done\n":
        change_patiently(AdminClient(socket), original)


if __name__ == "__main__":
    watch(Path(sys.argv[1]))
