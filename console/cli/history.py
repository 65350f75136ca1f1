"""`slotdeck history`: what is recorded, and how to export it."""

from __future__ import annotations

import csv
import gzip
import itertools
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from slotdeck.console.cli.exits import EPILOG, FAILED, NOTHING_RECORDED, USAGE, fail, say
from slotdeck.console.cli.moments import FromOption, ToOption, time_range

if TYPE_CHECKING:
    from slotdeck.engine.telemetry.frame import Frame
    from slotdeck.engine.telemetry.history.reader import History

What = Literal["requests", "events", "seconds", "frames"]
Format = Literal["csv", "json"]

app = typer.Typer(
    help="What the engine recorded: where it is, and how to export it.", no_args_is_help=True, rich_markup_mode=None
)


def open_history() -> History:
    """This user's history. The command ends with a sentence if there is none or if it cannot be read."""
    from slotdeck.engine.paths import history_path
    from slotdeck.engine.telemetry.history.reader import History, HistoryError, NoHistoryError

    history = History(history_path())
    try:
        history.span()
    except NoHistoryError as error:
        fail(str(error), NOTHING_RECORDED)
    except HistoryError as error:
        fail(str(error), FAILED)
    return history


@app.command("info", epilog=EPILOG)
def info(context: typer.Context, as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False) -> None:
    """Show where the history is, the time it covers and its size."""
    from slotdeck.console.cli.flags import merge_flags

    merge_flags(context, {}, ())
    history = open_history()
    span = history.span()
    facts: dict[str, Any] = {"path": str(history.path), "bytes": _size(history.path)} | history.counts()
    facts |= {"from": span and stamp(span[0]), "to": span and stamp(span[1])}
    if as_json:
        print(json.dumps(facts, indent=2))
        return
    for name, value in facts.items():
        print(f"{name:<9} {'–' if value is None else value}")


def _size(path: Path) -> int:
    """Bytes, including changes that are not yet merged into the file."""
    files = (path, path.with_name(path.name + "-wal"))
    return sum(file.stat().st_size for file in files if file.exists())


@app.command("export", epilog=EPILOG)
def export(
    context: typer.Context,
    file: Annotated[
        Path | None,
        typer.Argument(help="file to write, compressed if it is a .gz; default: stdout", show_default=False),
    ] = None,
    *,
    what: Annotated[
        What,
        typer.Option("--what", help="requests: one row each; events; seconds: one row of numbers each second; "
                     "frames: everything, for `slotdeck replay`"),
    ] = "requests",
    form: Annotated[
        Format | None, typer.Option("--format", help="default: from the name of the file, else csv", show_default=False)
    ] = None,
    begin: FromOption = None,
    end: ToOption = None,
) -> None:  # fmt: skip
    """Write recorded requests, events, seconds or frames to a file. No prompt text is ever recorded."""
    from slotdeck.console.cli.flags import merge_flags
    from slotdeck.engine.telemetry.history.reader import HistoryError

    merge_flags(context, {}, ())
    if what == "frames" and form == "csv":
        fail("frames have no columns: leave out --format, or export --what seconds", USAGE)
    history = open_history()
    start, stop = time_range(begin, end, time.time())
    try:
        with _output(file) as out:
            if what == "frames":
                count = _lines(out, history.frames(start, stop))
            else:
                write = _csv if (form or _format_of(file)) == "csv" else _json
                count = write(out, _rows(history, what, start, stop))
    except HistoryError as error:
        fail(str(error), FAILED)
    except BrokenPipeError:
        sys.stderr.close()  # The reader has closed the pipe.
        raise typer.Exit(0) from None
    except OSError as error:
        fail(f"{file}: {error.strerror or error}", FAILED)
    if file is not None:
        say(f"{count} {what} written to {file}")


def _rows(history: History, what: What, start: float, stop: float) -> Iterator[dict[str, Any]]:
    if what == "requests":
        for request in history.requests(start, stop):
            yield {"ended": stamp(request.ended)} | request.model_dump(exclude={"ended"})
    elif what == "events":
        for event in history.events(start, stop):
            yield {"time": stamp(event.time)} | event.model_dump(exclude={"time"})
    else:
        yield from (second(frame) for frame in history.frames(start, stop))


def stamp(at: float) -> str:
    """Wall clock in UTC to the millisecond, in ISO 8601."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def second(frame: Frame) -> dict[str, Any]:
    """The numbers of a frame as one flat row; ``None`` if unknown."""
    limits = frame.limits.model_dump(exclude={"mode"})
    return {
        "time": stamp(frame.time),
        "boot_id": frame.boot_id,
        "health": frame.health,
        "running": frame.running,
        "waiting": frame.waiting_count,
        **limits,
        "pool_total": frame.pool.total,
        "pool_live": frame.pool.live,
        "pool_cached": frame.pool.cached,
        "pool_free": frame.pool.free,
        "generated_per_second": frame.generated_per_second,
        "prompt_per_second": frame.prompt_per_second,
        "ttft_p95_60s": frame.minute.ttft_p95,
        "itl_p95_60s": frame.minute.itl_p95,
        "wait_p95_60s": frame.minute.wait_p95,
        **frame.counters.model_dump(),
        **frame.host.model_dump(),
    }


def _csv(out: IO[str], rows: Iterator[dict[str, Any]]) -> int:
    first = next(rows, None)
    if first is None:
        return 0
    writer = csv.DictWriter(out, list(first))
    writer.writeheader()
    count = 0
    for row in itertools.chain([first], rows):
        writer.writerow({name: _harmless(value) for name, value in row.items()})
        count += 1
    return count


def _harmless(value: Any) -> Any:
    """A value that a spreadsheet does not take for a formula, because labels come from clients."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value


def _json(out: IO[str], rows: Iterator[dict[str, Any]]) -> int:
    count = 0
    for row in rows:
        out.write((",\n" if count else "[\n") + json.dumps(row))
        count += 1
    out.write("\n]\n" if count else "[]\n")
    return count


def _lines(out: IO[str], frames: Iterator[Frame]) -> int:
    count = 0
    for frame in frames:
        out.write(frame.model_dump_json(exclude_defaults=True) + "\n")
        count += 1
    return count


def _format_of(file: Path | None) -> Format:
    return "json" if file is not None and ".json" in file.suffixes else "csv"


@contextmanager
def _output(file: Path | None) -> Iterator[IO[str]]:
    if file is None:
        yield sys.stdout
        sys.stdout.flush()
        return
    opened = cast("IO[str]", gzip.open(file, "wt", encoding="utf-8") if file.suffix == ".gz" else file.open("w"))  # noqa: SIM115
    with opened as out:
        yield out
