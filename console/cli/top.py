"""`slotdeck top`: the contents of the Live page as plain text, as JSON, or as a stream of JSON."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from slotdeck.console.cli.exits import FAILED, NO_ENGINE, OK, USAGE, fail
from slotdeck.console.cli.options import SocketOption

if TYPE_CHECKING:
    from slotdeck.console.client.admin import AdminClient
    from slotdeck.engine.telemetry.frame import Frame

FALLBACK_WIDTH = 100
"""Columns of the output if it does not go to a terminal."""
CLEAR = "\x1b[H\x1b[J"

EveryOption = Annotated[
    float, typer.Option("--every", min=0.1, max=5.0, help="seconds between two updates", metavar="SECONDS")
]


def top(
    context: typer.Context,
    *,
    once: Annotated[bool, typer.Option("--once", help="print once, then end")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print one frame as JSON, then end")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="print frames as they come, one JSON object per line")] = False,
    every: EveryOption = 1.0,
    socket: SocketOption = None,
) -> None:
    """Print who is served, who waits and what is full, without the console.

    On a terminal the output is updated until ctrl+c; anywhere else it is printed once. --json and --watch print whole
    frames, as in the admin API.
    """
    from slotdeck.console.cli.flags import check_settings, merge_flags
    from slotdeck.console.client.admin import AdminClient
    from slotdeck.engine.paths import default_socket

    if once + as_json + watch > 1:
        fail("give only one of --once, --json and --watch", USAGE)
    explicit = merge_flags(context, {} if socket is None else {"socket": socket}, ("socket",))
    admin = AdminClient(check_settings(explicit).socket or default_socket())
    try:
        raise typer.Exit(_print(admin, once=once, as_json=as_json, watch=watch, every=every))
    except KeyboardInterrupt:
        raise typer.Exit(OK) from None
    except BrokenPipeError:
        # The reader has closed the pipe. The interpreter flushes stdout at its end and must not fail there again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(OK) from None


def _print(admin: AdminClient, *, once: bool, as_json: bool, watch: bool, every: float) -> int:
    first = current_frame(admin)
    if as_json:
        print(first.model_dump_json(), flush=True)
        return OK
    if watch:
        for frame in _frames(admin, every):
            print(frame.model_dump_json(), flush=True)
        return OK
    if once or not sys.stdout.isatty():
        print("\n".join(picture(first, shutil.get_terminal_size((FALLBACK_WIDTH, 24)).columns)), flush=True)
        return OK
    stopped = _note_interrupts()
    for frame in _frames(admin, every):
        if stopped.is_set():
            break
        cells, rows = shutil.get_terminal_size()
        print(CLEAR + "\n".join(picture(frame, cells)[: rows - 1]), flush=True)
    return OK


def _note_interrupts() -> threading.Event:
    """An event that ctrl+c sets. The exception alone may be lost inside a callback of the interpreter."""
    stopped = threading.Event()

    def interrupt(_number: int, _frame: object) -> None:
        stopped.set()
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    return stopped


def current_frame(admin: AdminClient, otherwise: str = "") -> Frame:
    """The engine's current frame. Without an engine the command ends with a sentence, followed by ``otherwise``."""
    from slotdeck.console.client.admin import AdminError, NoEngineError
    from slotdeck.console.hosting.process import absence

    try:
        return admin.frame()
    except NoEngineError:
        fail("; ".join(filter(None, (absence(admin.path), otherwise))), NO_ENGINE)
    except AdminError as error:
        fail(str(error), FAILED)


def picture(frame: Frame, cells: int) -> list[str]:
    """The contents of the Live page as lines of at most ``cells`` columns."""
    from slotdeck.console.drawing.cells import plain
    from slotdeck.console.drawing.glyphs import to_ascii
    from slotdeck.console.sections.events import event_lines
    from slotdeck.console.sections.header import grid_lines, missed_target, title_line
    from slotdeck.console.sections.listing import ListState, listing
    from slotdeck.console.sections.slots import table
    from slotdeck.console.sections.waiting import waiting_lines
    from slotdeck.console.state.store import Store
    from slotdeck.console.terminal.environment import ascii_wanted

    store = Store()
    store.apply(frame)
    view = store.view
    listed = listing(frame, ListState())
    lines = [title_line(view, cells), *grid_lines(view, cells)]
    if frame.health != "ok":
        lines.append(((f" {frame.health.upper()}  {frame.health_reason or ''}", "alert"),))
    if missed := missed_target(frame.limits):
        lines.append(((f" {missed}", "warn"),))
    lines += [(), *table(frame, listed, cells, len(listed.slots) + 1, ListState()), ()]
    lines += waiting_lines(frame, listed, cells, len(listed.waiting) + 1)
    if frame.events:
        lines += [(), *event_lines(view.events, cells, min(11, len(view.events) + 1))]
    texts = [plain(line).rstrip() for line in lines]
    return [to_ascii(text) for text in texts] if ascii_wanted() else texts


def _frames(admin: AdminClient, every: float) -> Iterator[Frame]:
    """The engine's stream. It ends if the engine stops; the command fails if the engine falls silent."""
    from slotdeck.console.client.admin import AdminError

    try:
        yield from admin.stream(1 / every)
    except AdminError as error:
        fail(str(error), FAILED)
