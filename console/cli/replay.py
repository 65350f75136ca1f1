"""`slotdeck replay`: plays a recording, or a part of this machine's history, on the Live page."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slotdeck.console.cli.exits import FAILED, NOTHING_RECORDED, USAGE, fail
from slotdeck.console.cli.moments import FromOption, ToOption, time_range

if TYPE_CHECKING:
    from slotdeck.engine.telemetry.frame import Frame


def replay(
    context: typer.Context,
    file: Annotated[
        Path | None,
        typer.Argument(help="frames, one per line (`slotdeck history export --what frames`), may be a .gz file",
                       show_default=False),
    ] = None,
    *,
    begin: FromOption = None,
    end: ToOption = None,
    speed: Annotated[
        float, typer.Option("--speed", min=0.1, max=1000, help="2 plays twice as fast", metavar="TIMES")
    ] = 1.0,
) -> None:  # fmt: skip
    """Show a recording on the Live page as it was then. Without FILE: this machine's history, beginning with --from."""
    from slotdeck.console.cli.flags import merge_flags
    from slotdeck.console.cli.supervise import supervise
    from slotdeck.console.terminal.environment import terminal_problem

    merge_flags(context, {}, ())
    if (file is None) == (begin is None):
        fail("give either a FILE, or --from WHEN for this machine's history", USAGE)
    if file is not None and end is not None:
        fail("--to needs --from; a FILE is always played whole", USAGE)
    frames = _of_file(file) if file is not None else _of_history(begin, end)
    first = next(iter(frames), None)
    if first is None:
        if file is not None:
            fail(f"{file} contains no frame", FAILED)
        fail("nothing was recorded in that time", NOTHING_RECORDED)
    if (problem := terminal_problem()) is not None:
        fail(f"{problem}; `slotdeck history export` works without", USAGE)
    name = file.name if file is not None else f"history from {time.strftime('%a %H:%M', time.localtime(first.time))}"
    raise typer.Exit(supervise(lambda: _show(name, itertools.chain([first], frames), speed)))


def _show(name: str, frames: Iterable[Frame], speed: float) -> int:
    from slotdeck.console.app import run_console
    from slotdeck.console.sources.base import Disconnected
    from slotdeck.console.sources.recording import RecordingSource

    ending = Disconnected("end of the recording; press q to leave", final=True)
    # The title line shows throughout that this is not the running engine.
    marked = (f.model_copy(update={"engine": f.engine.model_copy(update={"name": "REPLAY"})}) for f in frames)
    source = RecordingSource(marked, speed=speed, ending=ending)
    return run_console(source, hosted=False, notices=[f"replay of {name}, {speed:g}x"])


def _of_history(begin: str | None, end: str | None) -> Iterator[Frame]:
    from slotdeck.console.cli.history import open_history

    history = open_history()
    start, stop = time_range(begin, end, time.time())
    return history.frames(start, stop)


def _of_file(file: Path) -> Iterator[Frame]:
    """The frames of a file. The command ends if the file cannot be opened or its first line is not a frame.

    Damage further on ends the replay.
    """
    from slotdeck.console.sources.recording import read_frames

    frames = _with_context(file, read_frames(file))
    try:
        first = next(frames, None)
    except (OSError, ValueError) as error:
        fail(str(error), FAILED)
    return frames if first is None else itertools.chain([first], frames)


def _with_context(file: Path, frames: Iterator[Frame]) -> Iterator[Frame]:
    for line in itertools.count(1):
        try:
            frame = next(frames, None)
        except OSError as error:
            raise OSError(f"{file}: {error.strerror or error}") from error
        except (ValueError, EOFError) as error:
            raise ValueError(f"{file}: line {line} is not a Slotdeck frame") from error
        if frame is None:
            return
        yield frame
