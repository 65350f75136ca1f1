"""`slotdeck load`: simulated users in front of a server, and what they see."""

from __future__ import annotations

import asyncio
import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from slotdeck.console.cli.exits import FAILED, NO_ENGINE, USAGE, fail
from slotdeck.console.cli.options import SocketOption
from slotdeck.console.load import Kind

if TYPE_CHECKING:
    from slotdeck.console.load.tally import Tally
    from slotdeck.console.load.traffic import Target

PLAIN_LINE_SECONDS = 10

UsersOption = Annotated[int, typer.Option("--users", min=1, max=1000, help="number of people or agents", metavar="N")]
KindOption = Annotated[
    Kind,
    typer.Option(
        "--kind",
        help="chat: reads 20 to 60 s between turns; agent: never pauses; document: long prompts, short answers",
        metavar="chat|agent|document",
    ),
]
UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url", help="any OpenAI-compatible server; default: your running engine", metavar="URL", show_default=False
    ),
]
KeyOption = Annotated[
    str | None, typer.Option("--api-key", help="with --url: its API key", metavar="KEY", show_default=False)
]
ModelOption = Annotated[
    str | None,
    typer.Option("--model", help="id of the model; default: the first one served", metavar="ID", show_default=False),
]
DurationOption = Annotated[
    float | None,
    typer.Option("--duration", min=1, help="seconds; default: until ctrl+c", metavar="SECONDS", show_default=False),
]
SeedOption = Annotated[int, typer.Option("--seed", help="the same seed gives the same texts and times", metavar="N")]


def load(
    context: typer.Context,
    *,
    users: UsersOption = 5,
    kind: KindOption = "chat",
    url: UrlOption = None,
    api_key: KeyOption = None,
    model: ModelOption = None,
    duration: DurationOption = None,
    seed: SeedOption = 1,
    socket: SocketOption = None,
) -> None:
    """Simulate users of a server and count what they see. Ctrl+c ends the load and prints the result.

    The client measures the times: TTFT from sending a request to its first text, ITL between two pieces of text. Users
    of your own engine appear on the Live page as ~laptop, ~phone, ~tablet and so on.
    """
    from slotdeck.console.cli.flags import check_settings, merge_flags
    from slotdeck.console.load.traffic import Target
    from slotdeck.engine.paths import default_socket

    merge_flags(context, {}, ())
    if url is None and api_key is not None:
        fail("--api-key needs --url; your own engine creates the keys of simulated users itself", USAGE)
    if url is not None and socket is not None:
        fail("give only one of --url and --socket", USAGE)
    if url is None:
        socket = socket or check_settings({}).socket or default_socket()
    target = Target(url=url, api_key=api_key, model=model, socket=socket)
    raise typer.Exit(_run(target, users=users, kind=kind, duration=duration, seed=seed))


def _run(
    target: Target,
    *,
    users: int,
    kind: Kind,
    duration: float | None,
    seed: int,
) -> int:
    """Run the load, show its progress and result, and return the exit code."""
    from rich.console import Console

    from slotdeck.console.load.client import RequestFailedError, UnreachableError
    from slotdeck.console.load.traffic import run_traffic

    screen = Console(highlight=False, markup=False)
    live = screen.is_terminal
    status = screen.status("starting", spinner="line") if live else nullcontext()
    with status as shown:
        ticks = 0

        def tick(tally: Tally) -> None:
            nonlocal ticks
            ticks += 1
            if shown is not None:
                shown.update(tally.line())
            elif ticks % PLAIN_LINE_SECONDS == 0:
                print(tally.line(), flush=True)

        try:
            tally = asyncio.run(
                run_traffic(
                    target,
                    users=users,
                    kind=kind,
                    seed=seed,
                    duration=duration,
                    on_tick=tick,
                )
            )
        except RequestFailedError as error:
            fail(str(error), NO_ENGINE if isinstance(error, UnreachableError) and target.own else FAILED)
    _print_table(tally.table())
    if tally.gone:
        fail("the server cannot be reached any more; the load ended", NO_ENGINE if target.own else FAILED)
    return 0


def _print_table(rows: list[tuple[str, str]]) -> None:
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:<{width}}  {value}", file=sys.stdout)
