"""`slotdeck bench`: measures a private engine, or any OpenAI-compatible server."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from slotdeck.console.cli.exits import FAILED, USAGE, fail, say
from slotdeck.console.cli.flags import check_settings, merge_flags, settings_flags
from slotdeck.engine.settings import SETTINGS

ENGINE_FLAGS = (
    *("model", "slots", "context", "queue", "budget", "kv_tokens"),
    *("mode", "weights", "kv_dtype", "device", "threads"),
)
FLAME_FILE = Path("slotdeck-profile.svg")
OWN_DEFAULTS = {"slots": 20, "context": 512, "queue": 256}
"""20 slots for 20 users, a context for 150 words and 64 tokens, and a queue that refuses nobody on one slot."""


@settings_flags(ENGINE_FLAGS, OWN_DEFAULTS)
def bench(
    context: typer.Context,
    settings: dict[str, Any],
    *,
    url: Annotated[
        str | None,
        typer.Option(
            "--url",
            help="measure this OpenAI-compatible server instead; --model is then the id of its model",
            metavar="URL",
            show_default=False,
        ),
    ] = None,
    api_key: Annotated[
        str | None, typer.Option("--api-key", help="with --url: its API key", metavar="KEY", show_default=False)
    ] = None,
    users: Annotated[
        str, typer.Option("--users", help="numbers of users, with one stage for each", metavar="LIST")
    ] = "1,2,5,20",
    requests: Annotated[
        int, typer.Option("--requests", min=1, max=100, help="requests per user, one after another", metavar="N")
    ] = 2,
    seed: Annotated[int, typer.Option("--seed", help="seed of the prompts", metavar="N")] = 1,
    calibration: Annotated[
        bool,
        typer.Option(
            "--calibrate", help="instead, measure and save a calibration for `slotdeck plan`; takes about two minutes"
        ),
    ] = False,
    profile: Annotated[
        bool,
        typer.Option("--profile", help=f"also show where a step's time goes, and draw it into ./{FLAME_FILE}"),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON instead of the table")] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", help="also write the JSON to this file", metavar="FILE", show_default=False),
    ] = None,
) -> None:
    """Measure tokens/s, TTFT and ITL with 1, 2, 5 and 20 users at once: 150-word prompts, 64 tokens out.

    By default, the bench starts a private engine, measures it, also measures the most users on one slot, and stops it.
    It does not touch your running engine, but both share the machine: stop yours for fair numbers.

    With --calibrate, it measures what a step costs, first alone in the engine, then through the server under several
    kinds of load; and how close that is to the limits of this machine's memory and arithmetic.

    TTFT is the time from sending a request to its first text, ITL the gap between two pieces of text as they arrive,
    and tok/s all generated tokens divided by the time from the first request to the last text. Refused requests are
    counted and not sent again. One warm-up request is not counted.
    """
    if calibration:
        if profile:
            fail("--calibrate does not support --profile; leave it out", USAGE)
        _calibration(context, settings, url=url, as_json=as_json, output=output)
        return
    counts = _user_counts(users)
    explicit = merge_flags(context, settings, ENGINE_FLAGS)
    if url is None and api_key is not None:
        fail("--api-key needs --url", USAGE)
    if url is not None and profile:
        fail("--profile inspects the private engine; leave it out with --url", USAGE)
    misplaced = [SETTINGS[name].flag for name in explicit if name != "model"]
    if url is not None and misplaced:
        fail(f"{misplaced[0]} configures the private engine; leave it out with --url", USAGE)
    wanted = check_settings(OWN_DEFAULTS | explicit)
    from slotdeck.console.bench.run import BenchOptions, bench_engine, bench_url
    from slotdeck.console.client.admin import AdminError
    from slotdeck.console.hosting.engine_process import EngineExitedError
    from slotdeck.console.hosting.private_engine import private_engine
    from slotdeck.console.load.client import RequestFailedError

    plan = BenchOptions(counts, requests, seed, say, profile)
    try:
        if url is not None:
            report = asyncio.run(bench_url(plan, url, api_key, explicit.get("model")))
        else:
            with private_engine(wanted, say) as (admin, frame):
                report = asyncio.run(bench_engine(plan, admin, frame))
    except (RequestFailedError, AdminError) as error:
        fail(str(error))
    except EngineExitedError as error:
        for line in error.lines:
            say(line)
        fail(
            f"the private engine ended before it served (exit code {error.code})",
            error.code if error.code > 0 else FAILED,
        )
    except KeyboardInterrupt:
        fail("stopped before the end; nothing was measured")
    document = json.dumps(report.as_json(), indent=2)
    if output is not None:
        try:
            output.write_text(document + "\n", "utf-8")
        except OSError as error:
            say(f"could not write {output}: {error.strerror or error}")
    if report.flame is not None:
        try:
            FLAME_FILE.write_text(report.flame, "utf-8")
            say(f"flame graph: {FLAME_FILE}")
        except OSError as error:
            say(f"could not write {FLAME_FILE}: {error.strerror or error}")
    print(document if as_json else report.as_text())
    if all(stage.generated_tokens == 0 for stage in report.stages):
        fail("no request was answered")


def _calibration(
    context: typer.Context, settings: dict[str, Any], *, url: str | None, as_json: bool, output: Path | None
) -> None:
    """Measure, save and print a calibration."""
    explicit = merge_flags(context, settings, ENGINE_FLAGS)
    if url is not None:
        fail("--calibrate measures inside a private engine; leave out --url", USAGE)
    sets_up = ("model", "weights", "kv_dtype", "device", "threads")
    for name in explicit:
        if name not in sets_up:
            fail(f"--calibrate uses its own settings; leave out {SETTINGS[name].flag}", USAGE)
    from slotdeck.console.advice.step_model import StepModelError
    from slotdeck.console.bench.calibrate import CALIBRATION_SETTINGS, calibrate
    from slotdeck.console.bench.calibration_file import save_calibration
    from slotdeck.console.bench.calibration_report import calibration_text
    from slotdeck.console.client.admin import AdminError
    from slotdeck.console.hosting.engine_process import EngineExitedError
    from slotdeck.console.load.client import RequestFailedError

    wanted = check_settings(CALIBRATION_SETTINGS | explicit)
    try:
        measured = calibrate(wanted, say)
        path = save_calibration(measured)
        if output is not None:
            output.write_text(measured.model_dump_json(indent=2) + "\n", "utf-8")
    except (RequestFailedError, AdminError, StepModelError) as error:
        fail(str(error))
    except OSError as error:
        fail(f"could not write {error.filename}: {error.strerror or error}")
    except EngineExitedError as error:
        for line in error.lines[-5:]:
            say(line)
        fail(f"the private engine ended before it was measured (exit code {error.code})", FAILED)
    except KeyboardInterrupt:
        fail("stopped before the end; nothing was saved")
    if as_json:
        print(measured.model_dump_json(indent=2))
    else:
        print("\n".join([*calibration_text(measured), f"saved as {path}"]))


def _user_counts(text: str) -> list[int]:
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        counts = []
    if not counts or min(counts) < 1 or max(counts) > 1000:
        fail(f"--users must be a list of numbers from 1 to 1000 such as 1,2,5,20, not {text!r}", USAGE)
    return counts
