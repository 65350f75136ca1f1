"""`slotdeck demo`: 2, 5 and 20 users in three modes of batching, or a scene, on the running engine."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slotdeck.console.cli.exits import FAILED, USAGE, fail, say
from slotdeck.console.cli.options import SocketOption
from slotdeck.console.demo.rows import MODES, SECONDS, SEED, USERS, describe
from slotdeck.console.demo.scenes import SCENES
from slotdeck.console.demo.wanted import DEFAULT_WHO, Wanted, parse

if TYPE_CHECKING:
    from slotdeck.console.demo.state import DemoState, Event

ALL_USERS, ALL_KINDS, ALL_MODES = ",".join(map(str, USERS)), ",".join(DEFAULT_WHO), ",".join(MODES)

UsersOption = Annotated[str, typer.Option("--users", help="numbers of users", metavar="LIST")]
KindsOption = Annotated[
    str,
    typer.Option(
        "--kinds",
        help="human: reads 20 to 60 s between turns; agent: never pauses; document: long prompts, short answers",
        metavar="LIST",
    ),
]
ModesOption = Annotated[str, typer.Option("--modes", help="modes of batching to compare", metavar="LIST")]
SecondsOption = Annotated[
    float,
    typer.Option(
        "--seconds", min=1, max=3600, help="length of each row; fewer seconds mean fewer turns, not shorter reading"
    ),
]
SceneOption = Annotated[
    list[str] | None,
    typer.Option(
        "--scene", help=f"show a scene of a minute: {', '.join(SCENES)}, or all; may be repeated", metavar="NAME",
        show_default=False,
    ),
]  # fmt: skip
SeedOption = Annotated[int, typer.Option("--seed", help="the same seed gives the same people, texts and times")]


def demo(
    context: typer.Context,
    *,
    users: UsersOption = ALL_USERS,
    kinds: KindsOption = ALL_KINDS,
    modes: ModesOption = ALL_MODES,
    seconds: SecondsOption = SECONDS,
    scene: SceneOption = None,
    seed: SeedOption = SEED,
    output: Annotated[
        Path | None,
        typer.Option("--output", help="folder for report.txt, .json, .svg and recording.ndjson.gz", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON instead of the table")] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="do not ask for confirmation while others are being served")
    ] = False,
    socket: SocketOption = None,
) -> None:
    """Show what 2, 5 and 20 users get when one model serves one at a time, in whole batches, or continuously.

    The demo runs on your engine, or on a private one if none runs. It changes the mode (scenes change more settings)
    and restores your settings at the end, also after ctrl+c or a crash.
    """
    from slotdeck.console.cli.flags import check_settings, merge_flags
    from slotdeck.console.cli.start_or_attach import running_engine
    from slotdeck.console.client.admin import AdminClient
    from slotdeck.engine.paths import default_socket

    explicit = merge_flags(context, {} if socket is None else {"socket": socket}, ("socket",))
    try:
        wanted = parse(users, kinds, modes, seconds, scene or [])
    except ValueError as error:
        fail(str(error), USAGE)
    settings = check_settings(explicit)
    admin = AdminClient(settings.socket or default_socket())
    frame = running_engine(admin)
    _announce(wanted)
    if frame is not None:
        _ask(frame, yes)
        state = _run(admin.path, wanted, seed, output)
    else:
        from slotdeck.console.hosting.engine_process import EngineExitedError
        from slotdeck.console.hosting.private_engine import private_engine

        say("no engine runs: starting a private one for the demo")
        try:
            with private_engine(settings, say) as (private, _):
                state = _run(private.path, wanted, seed, output)
        except EngineExitedError as error:
            fail(f"the private engine ended before it served: {' '.join(error.lines[-1:])}", FAILED)
    if state.rows:
        from slotdeck.console.demo.export import as_json as document
        from slotdeck.console.demo.export import as_text

        print(json.dumps(document(state, seed), indent=2) if as_json else as_text(state))
    for file in state.files:
        say(f"written: {file}")
    if state.ended != "done":
        fail(state.end_text, FAILED)


def _announce(wanted: Wanted) -> None:
    say(f"{describe(wanted.expected())}; ctrl+c ends it and restores your settings")


def _ask(frame: object, yes: bool) -> None:
    from slotdeck.console.demo.perform import others, warning
    from slotdeck.engine.telemetry.frame import Frame

    assert isinstance(frame, Frame)
    count = others(frame)
    if count == 0 or yes:
        return
    if not sys.stdin.isatty():
        fail(f"{warning(count)}; --yes runs it anyway", USAGE)
    if not typer.confirm(f"slotdeck: {warning(count)}. Go on?", err=True):
        raise typer.Exit(USAGE)


def _run(socket: Path, wanted: Wanted, seed: int, output: Path | None) -> DemoState:
    from slotdeck.console.demo.perform import perform

    with _shown() as on_event:
        return asyncio.run(perform(socket, wanted, seed=seed, on_event=on_event, folder=output))


@contextmanager
def _shown() -> Iterator[Callable[[Event], None]]:
    """On a terminal, a picture that is updated; anywhere else, one line for each row."""
    from slotdeck.console.demo.state import DemoState

    state = DemoState()
    if not sys.stderr.isatty():

        def plainly(event: Event) -> None:
            state.apply(event)
            if event["event"] == "status":
                say(event["text"])
            elif event["event"] == "result":
                say(f"  {event['result']['sentence']}")

        yield plainly
        return
    from slotdeck.console.demo.live import Picture

    with Picture(state) as picture:

        def live(event: Event) -> None:
            state.apply(event)
            picture.draw()

        yield live
