"""Parses points in time as people type them: `21:40`, `2026-11-28T21:40`, `30m` (ago), `now`."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Annotated

import typer

from slotdeck.console.cli.exits import USAGE, fail

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
TIME_OF_DAY = re.compile(r"\s*\d{1,2}:\d{2}(:\d{2})?\s*")

FromOption = Annotated[
    str | None,
    typer.Option(
        "--from", help="begin: 21:40, 2026-11-28T21:40, or 30m, 2h, 3d ago", metavar="WHEN", show_default=False
    ),
]
ToOption = Annotated[
    str | None, typer.Option("--to", help="end, written the same way; default: now", metavar="WHEN", show_default=False)
]


def parse_moment(text: str, now: float) -> float:
    """Seconds since the epoch. A time of day means its latest occurrence. Raises ValueError with a sentence."""
    text = text.strip()
    if text == "now":
        return now
    if ago := re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhd])(?:\s+ago)?", text):
        return now - float(ago[1]) * UNITS[ago[2]]
    try:
        if TIME_OF_DAY.fullmatch(text):
            hours, minutes, seconds = (int(part) for part in f"{text}:0".split(":")[:3])
            today = datetime.fromtimestamp(now).replace(hour=hours, minute=minutes, second=seconds, microsecond=0)
            return (today if today.timestamp() <= now else today - timedelta(days=1)).timestamp()
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError) as error:
        raise ValueError(f"{text!r} is not a time; write 21:40, 2026-11-28T21:40, 30m, 2h, 3d or now") from error


def time_range(begin: str | None, end: str | None, now: float, default_begin: float = 0.0) -> tuple[float, float]:
    """Both options as seconds since the epoch. A bad value ends the command with exit code 2.

    If the end is a time of day that is still to come today, it means now.
    """
    try:
        start = default_begin if begin is None else parse_moment(begin, now)
        stop = now if end is None else parse_moment(end, now)
    except ValueError as error:
        fail(str(error), USAGE)
    if end is not None and TIME_OF_DAY.fullmatch(end) and stop < start <= now:
        stop = now
    if start > stop:
        fail("--from is later than --to", USAGE)
    return start, stop
