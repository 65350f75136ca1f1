"""`slotdeck probe URL`: whether a server queues, batches or shares bandwidth, and whether it cuts prompts."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated

import typer

from slotdeck.console.cli.exits import FAILED, FOUND, fail, say


def probe(
    context: typer.Context,
    url: Annotated[str, typer.Argument(help="any OpenAI-compatible server, or Ollama", metavar="URL")],
    *,
    api_key: Annotated[
        str | None, typer.Option("--api-key", help="its API key", metavar="KEY", show_default=False)
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="id of the model; default: the first one", show_default=False)
    ] = None,
    at_once: Annotated[
        int, typer.Option("--at-once", min=2, max=64, help="simultaneous requests that count the slots")
    ] = 8,
    longest: Annotated[
        int, typer.Option("--longest", min=0, max=131_072, help="tokens of the longest prompt; 0: no long prompts")
    ] = 8192,
    seconds: Annotated[float, typer.Option("--seconds", min=5, max=3600, help="time limit for everything")] = 120.0,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Find out what a server does with two simultaneous requests, how many it runs at once, and whether it silently
    cuts long prompts.

    The server should have no other work meanwhile. Exit codes: 0 both requests ran together and nothing was cut; 5
    requests queue or prompts are cut; 1 it could not be measured; 2 usage.
    """
    from slotdeck.console.cli.flags import merge_flags
    from slotdeck.console.load.client import BusyError, RequestFailedError
    from slotdeck.console.probe.report import as_json as document
    from slotdeck.console.probe.report import as_text, found_wrong, measured
    from slotdeck.console.probe.run import Limits
    from slotdeck.console.probe.run import probe as run

    merge_flags(context, {}, ())
    limits = Limits(at_once, longest, seconds)
    say(limits.describe())
    try:
        report = asyncio.run(run(url, api_key, model, limits, say))
    except (RequestFailedError, BusyError) as error:
        fail(str(error), FAILED)
    except KeyboardInterrupt:
        fail("stopped before the end", FAILED)
    print(json.dumps(document(report), indent=2, ensure_ascii=False) if as_json else as_text(report))
    if not measured(report):
        fail("two requests at once could not be measured; the reasons are above", FAILED)
    raise typer.Exit(FOUND if found_wrong(report) else 0)
