"""`slotdeck` without a command: finds this user's engine or starts one, then opens the console on it.

The engine runs in its own session. Whatever happens to this process, the console or the terminal, it goes on serving.
Only a confirmed quit in the console or a signal to the engine ends it.
"""

from __future__ import annotations

import fcntl
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from slotdeck.console.cli.exits import FAILED, PORT_IN_USE, USAGE, fail, say
from slotdeck.console.cli.flags import check_settings, setting_text
from slotdeck.console.cli.show_console import show_console
from slotdeck.console.cli.variables import unread_variables
from slotdeck.console.client.admin import AdminClient, AdminError
from slotdeck.console.hosting.engine_process import ENGINE_COMMAND, EngineExitedError, EngineProcess
from slotdeck.console.hosting.hosted_engine import engine_log, found_notice, hosted_marker, is_hosted
from slotdeck.console.hosting.process import lock_holder, start_lock, starter
from slotdeck.console.keys.actions import SETTING_KEYS
from slotdeck.console.terminal.environment import terminal_problem
from slotdeck.engine.configuration import to_environment
from slotdeck.engine.paths import default_socket
from slotdeck.engine.settings import SETTINGS, Setting, StartSettings
from slotdeck.engine.telemetry.frame import Frame

LOG_LINES_SHOWN = 12
START_GRACE = 1.0
"""Seconds that `slotdeck attach` waits for an engine that is started at the same moment."""


def serve_in_foreground(explicit: dict[str, Any]) -> NoReturn:
    """Replace this process with the headless engine."""
    check_settings(explicit)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(ENGINE_COMMAND[0], [*ENGINE_COMMAND, "serve"], dict(os.environ) | to_environment(explicit))


def host_console(explicit: dict[str, Any]) -> int:
    """Open the console on the running engine, or on one started with ``explicit`` settings; return the exit code."""
    settings = check_settings(explicit)
    if (problem := terminal_problem()) is not None:
        say(f"{problem}; serving headless instead")
        serve_in_foreground(explicit)
    socket = settings.socket or default_socket()
    admin = AdminClient(socket)
    frame = _serving(admin)
    notices = [] if frame is None else attach_notices(admin, frame, settings, explicit)
    if frame is None:
        frame, notices = _start_or_join(admin, settings, explicit)
    return show_console(socket, frame.boot_id, hosted=is_hosted(socket, frame.boot_id), notices=notices)


def running_engine(admin: AdminClient) -> Frame | None:
    """The frame of the running engine; ``None`` if there is none. An engine that does not answer ends the command."""
    try:
        return admin.running()
    except AdminError as error:
        fail(str(error))


def engine_to_attach(admin: AdminClient) -> Frame | None:
    """The frame of the running engine; waits for one that is starting. ``None`` if there is none."""

    def who() -> int | None:
        return lock_holder(admin.path) or starter(admin.path)

    until = time.monotonic() + START_GRACE
    while (frame := running_engine(admin)) is None and who() is None:
        if time.monotonic() >= until:
            return None
        time.sleep(0.05)
    if frame is not None:
        return frame
    with _progress("waiting for the engine") as (show, _):
        return _wait_for_other(lambda: running_engine(admin), who, show)


def unread_notices() -> list[str]:
    """A notice about variables that nothing reads. It also stands on stderr, but the console hides that at once."""
    unread = unread_variables(os.environ)
    return [] if unread is None else [unread]


def attach_notices(admin: AdminClient, frame: Frame, settings: StartSettings, explicit: dict[str, Any]) -> list[str]:
    """Notices about an engine that was already running: since when, and which given settings it does not use.

    These are the flags in ``explicit`` and ``SLOTDECK_*`` variables whose values are not in force. ``settings`` are all
    settings, with both applied.
    """
    notices = [found_notice(frame.uptime, frame.engine.pid, frame.time), *unread_notices()]
    given: dict[str, tuple[str, Any]] = {
        name: (f"{setting.variable}=", os.environ[setting.variable])
        for name, setting in SETTINGS.items()
        if setting.variable in os.environ
    }
    given |= {name: (f"{SETTINGS[name].flag} ", value) for name, value in explicit.items()}
    given.pop("socket", None)
    if not given:
        return notices
    listed = admin.call("GET", "/admin/settings")["settings"]
    in_force = {row["name"]: row.get("value") for row in listed}
    wanted = settings.model_dump(mode="json")
    differing = [
        _difference(SETTINGS[name], origin, value, in_force.get(name))
        for name, (origin, value) in given.items()
        if in_force.get(name) != wanted[name] and (name in explicit or _can_differ(name, wanted[name], frame))
    ]
    if differing:
        notices.append(f"not applied to the running engine: {', '.join(differing)}")
    return notices


def _can_differ(name: str, wanted: Any, frame: Frame) -> bool:
    """False if a variable's value may be in force although the engine reports something else.

    An engine does not report its keys, and it reports the pool in tokens even if it was given in bytes or as a share. A
    variable stays set, so that a false notice would appear each time.
    """
    if name == "api_key":
        return bool(wanted) and not frame.engine.keys_required
    return name != "kv_tokens" or isinstance(wanted, int)


def _difference(setting: Setting, origin: str, value: Any, in_force: Any) -> str:
    if isinstance(setting.default, list):  # May hold keys.
        return origin.rstrip(" =")
    if in_force is None:
        return f"{origin}{value}"
    key = SETTING_KEYS.get(setting.name)
    change = f", key {key} changes it" if key else ""
    return f"{origin}{value} (it runs with {setting_text(in_force)}{change})"


@contextmanager
def _start_lock(socket: Path, while_waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the start lock, so that only one `slotdeck` starts the engine; another one waits here and then finds it.

    The lock file contains the pid of this process. ``while_waiting`` is called several times a second.
    """
    socket.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with start_lock(socket).open("a+") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                while_waiting()
                time.sleep(0.1)
        file.truncate(0)
        print(os.getpid(), file=file, flush=True)
        yield


@contextmanager
def _progress(begin: str) -> Iterator[tuple[Callable[[str], None], Callable[[], None]]]:
    """A line with a spinner. Yields a function that changes its text, and one that removes it."""
    from rich.console import Console
    from rich.text import Text

    utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    screen = Console(highlight=False, markup=False)
    with screen.status(begin, spinner="dots" if utf8 else "line") as status:
        # A plain string would be read as markup.
        yield lambda progress: status.update(Text(progress)), status.stop


def _start_or_join(admin: AdminClient, settings: StartSettings, explicit: dict[str, Any]) -> tuple[Frame, list[str]]:
    """Start the engine, or wait for one that another process starts. Ends the command if neither serves."""
    log = engine_log()
    with (
        _progress("starting the engine") as (show, clear),
        _start_lock(admin.path, lambda: show("another slotdeck is starting the engine")),
    ):
        while True:
            frame = _wait_for_other(lambda: _serving(admin), lambda: lock_holder(admin.path), show)
            if frame is not None:
                return frame, attach_notices(admin, frame, settings, explicit)
            process = EngineProcess(dict(os.environ) | to_environment(explicit), log)
            try:
                frame = process.wait_until_serving(admin, show)
            except KeyboardInterrupt:
                show("stopping the engine")
                process.stop()
                fail("stopped before the engine served")
            except EngineExitedError as error:
                if lock_holder(admin.path) is not None:
                    continue  # A `slotdeck serve` that started at the same moment was faster.
                clear()
                _explain_exit(error, log)
            hosted_marker(admin.path).write_text(frame.boot_id)
            return frame, unread_notices()


def _serving(admin: AdminClient) -> Frame | None:
    """The frame of an engine to attach to; ``None`` for an engine that is stopping."""
    frame = running_engine(admin)
    return None if frame is None or frame.health == "draining" else frame


def _wait_for_other(
    find: Callable[[], Frame | None], who: Callable[[], int | None], show: Callable[[str], None]
) -> Frame | None:
    """Wait until ``find`` finds an engine, or until no process holds a lock any more; then ``None``.

    ``who`` returns the pid of the process that holds the lock.
    """
    try:
        while (frame := find()) is None and (pid := who()) is not None:
            show(f"waiting for an engine that is starting or stopping (pid {pid})")
            time.sleep(0.1)
    except KeyboardInterrupt:
        fail("stopped waiting for the other engine")
    return frame


def _explain_exit(error: EngineExitedError, log: Path) -> NoReturn:
    for line in error.lines[-LOG_LINES_SHOWN:]:
        print(f"  {line}", file=sys.stderr)
    reason = f"exit code {error.code}" if error.code >= 0 else f"signal {-error.code}"
    code = error.code if error.code in (FAILED, USAGE, PORT_IN_USE) else FAILED
    fail(f"the engine ended before it served ({reason}); its last log lines are above, the whole log is {log}", code)
