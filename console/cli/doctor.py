"""`slotdeck doctor`: what is wrong, the evidence in numbers, and the remedy."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slotdeck.console.cli.exits import FAILED, FOUND, NOTHING_RECORDED, fail, say
from slotdeck.console.cli.moments import FromOption, ToOption, time_range
from slotdeck.console.cli.options import SocketOption

if TYPE_CHECKING:
    from slotdeck.console.advice.finding import Finding
    from slotdeck.console.client.admin import AdminClient
    from slotdeck.engine.telemetry.frame import Frame

WINDOW = 600.0
"""Seconds that are examined by default."""
LATE_WRITES, LATE_WRITES_LOCKED = 1.5, 6.0
"""How many intervals of the recorder may pass without a record before its engine is assumed to have ended.

The second number applies while an engine holds the socket: it may be another engine, or one that is slow to write.
"""
LOOK_BACK = "`slotdeck doctor --from 2h` examines what was recorded"
WATCH_SECONDS = 10
"""How long an engine without history is watched."""


def doctor(
    context: typer.Context,
    *,
    begin: FromOption = None,
    end: ToOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
    socket: SocketOption = None,
) -> None:
    """Report what is wrong with the engine, the evidence in numbers, and the remedy.

    It examines the last 10 minutes that the engine recorded. With --from and --to it examines any recorded time, even
    if no engine runs. An engine without history is watched for ten seconds. The exit code is 0 if nothing is wrong, 5
    if something is, 4 if no engine runs or nothing was recorded in that time, and 1 if the history cannot be read.
    With --json each finding has its `changes`, as the admin API takes them, and its `cost` in seconds.
    """
    from slotdeck.console.advice.doctor import diagnose
    from slotdeck.console.cli.flags import check_settings, merge_flags
    from slotdeck.console.client.admin import AdminClient
    from slotdeck.engine.paths import default_socket

    explicit = merge_flags(context, {} if socket is None else {"socket": socket}, ("socket",))
    path = check_settings(explicit).socket or default_socket()
    if begin is not None or end is not None:
        frames, engine_gone = _recorded(begin, end, path)
    else:
        frames, engine_gone = _recent(AdminClient(path)), False
    findings = diagnose(frames, engine_gone)
    if as_json:
        print(json.dumps([_as_json(finding, frames) for finding in findings], indent=2, ensure_ascii=False))
    else:
        print("\n".join(report(findings, frames)))
    if findings:
        raise typer.Exit(FOUND)


def report(findings: list[Finding], frames: list[Frame]) -> list[str]:
    """The findings as lines of text."""
    from slotdeck.console.advice.finding import cost_text
    from slotdeck.console.advice.window import seconds_since_change
    from slotdeck.console.planning.predictions import can_be_predicted, prediction_text
    from slotdeck.console.sources.history import local_history

    first, last = (time.strftime("%a %H:%M:%S", time.localtime(frame.time)) for frame in (frames[0], frames[-1]))
    lines = [f"{frames[-1].engine.model or 'engine'}, {first} to {last}, {len(frames)} frames"]
    if not findings:
        return [*lines, "nothing is wrong"]
    if (since := seconds_since_change(frames)) is not None:
        lines.append(f"settings changed {since:.0f} s ago, too recently to judge; these findings are from before")
    for finding in findings:
        cost = f" ({cost_text(finding)})" if cost_text(finding) else ""
        lines += ["", f"{'!' if finding.level == 'critical' else '-'} {finding.title}{cost}"]
        lines += [f"    {text}" for text in finding.evidence]
        lines.append(f"    {finding.explanation}")
        if finding.in_force(frames[-1].limits):
            lines.append(f"    remedy: {finding.remedy} (already in force)")
            continue
        lines.append(f"    remedy: {finding.remedy}")
        if can_be_predicted(finding):
            lines.append(f"    predicted: {prediction_text(frames, finding, local_history())}")
    return lines


def _as_json(finding: Finding, frames: list[Frame]) -> dict[str, Any]:
    from slotdeck.console.advice.prediction import NoPredictionError
    from slotdeck.console.planning.predictions import can_be_predicted, prediction
    from slotdeck.console.sources.history import local_history

    predicted = None
    if can_be_predicted(finding):
        try:
            predicted = dataclasses.asdict(prediction(frames, finding, local_history()))
        except NoPredictionError as error:
            say(f"{finding.rule}: no prediction: {error}")
    return dataclasses.asdict(finding) | {"predicted": predicted}


def _recorded(begin: str | None, end: str | None, path: Path) -> tuple[list[Frame], bool]:
    """The frames of the range, and whether the engine of the last frame has ended."""
    from slotdeck.console.cli.history import open_history
    from slotdeck.console.hosting.process import lock_holder
    from slotdeck.engine.telemetry.history.reader import HistoryError
    from slotdeck.engine.telemetry.history.schema import WRITE_SECONDS

    history = open_history()
    now = time.time()
    stop = time_range(None, end, now)[1]
    start, stop = time_range(begin, end, now, default_begin=stop - WINDOW)
    try:
        frames = list(history.frames(start, stop))
        if not frames:
            fail("nothing was recorded in that time", NOTHING_RECORDED)
        after = history.step(frames[-1].time, 1)
    except HistoryError as error:
        fail(str(error), FAILED)
    if after is not None:
        return frames, after.boot_id != frames[-1].boot_id
    intervals = LATE_WRITES if lock_holder(path) is None else LATE_WRITES_LOCKED
    return frames, now - frames[-1].time > intervals * WRITE_SECONDS


def _recent(admin: AdminClient) -> list[Frame]:
    """The last minutes of the running engine, or a few seconds from now if it has no history."""
    from slotdeck.console.cli.top import current_frame
    from slotdeck.console.client.admin import AdminError
    from slotdeck.engine.paths import history_path
    from slotdeck.engine.telemetry.history.reader import History, HistoryError

    now = current_frame(admin, LOOK_BACK)
    try:
        frames = list(History(history_path()).frames(now.time - WINDOW, now.time))
    except HistoryError:
        frames = []
    if frames:
        return [*frames, now]
    say(f"this engine has no history yet; watching it for {WATCH_SECONDS} s")
    frames = [now]
    try:
        for frame in admin.stream(1.0):
            frames.append(frame)
            if len(frames) > WATCH_SECONDS:
                break
    except AdminError as error:
        fail(str(error), FAILED)
    return frames
