"""The command `slotdeck`. Each command imports what it needs when it runs, so that help and version are fast."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Annotated, Any

import typer

from slotdeck.console.cli.bench import bench
from slotdeck.console.cli.config import config_commands
from slotdeck.console.cli.demo import demo
from slotdeck.console.cli.doctor import doctor
from slotdeck.console.cli.exits import EPILOG, NO_ENGINE, USAGE, fail, say
from slotdeck.console.cli.export import export
from slotdeck.console.cli.flags import check_settings, merge_flags, settings_flags
from slotdeck.console.cli.history import app as history_commands
from slotdeck.console.cli.load import load
from slotdeck.console.cli.options import SocketOption
from slotdeck.console.cli.plan import plan
from slotdeck.console.cli.probe import probe
from slotdeck.console.cli.replay import replay
from slotdeck.console.cli.top import top
from slotdeck.console.cli.variables import unread_variables

HELP_NAMES = {"help_option_names": ["-h", "--help"]}

app = typer.Typer(
    name="slotdeck",
    context_settings=HELP_NAMES,
    pretty_exceptions_enable=False,
    invoke_without_command=True,
    rich_markup_mode=None,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from slotdeck.engine import __version__

        print(f"slotdeck {__version__}")
        raise typer.Exit


@app.callback(epilog=EPILOG)
@settings_flags()
def console(
    context: typer.Context,
    settings: dict[str, Any],
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """A terminal console with its own LLM engine: see who is served, who waits and what is full, and change settings.

    Without a command, slotdeck opens the console on this user's engine and starts an engine if none runs. The engine
    goes on serving when the console is closed, detached or killed; a confirmed `q` stops it. Without a terminal,
    slotdeck serves headless. Settings come from flags, then SLOTDECK_* variables, then config.toml.
    """
    context.obj = settings
    if (unread := unread_variables(os.environ)) is not None:
        say(unread)
    if context.invoked_subcommand is None:
        from slotdeck.console.cli.start_or_attach import host_console

        raise typer.Exit(host_console(settings))


@app.command(epilog=EPILOG)
@settings_flags()
def serve(context: typer.Context, settings: dict[str, Any]) -> None:
    """Serve headless, without a console (for systemd or a container)."""
    from slotdeck.console.cli.start_or_attach import serve_in_foreground

    serve_in_foreground(merge_flags(context, settings))


@app.command(epilog=EPILOG)
def attach(context: typer.Context, socket: SocketOption = None) -> None:
    """Open the console on a running or starting engine. Leaving it never stops the engine."""
    explicit = merge_flags(context, {} if socket is None else {"socket": socket}, ("socket",))
    from slotdeck.console.cli.show_console import show_console
    from slotdeck.console.cli.start_or_attach import attach_notices, engine_to_attach
    from slotdeck.console.client.admin import AdminClient
    from slotdeck.console.hosting.process import absence
    from slotdeck.console.terminal.environment import terminal_problem
    from slotdeck.engine.paths import default_socket

    if (problem := terminal_problem()) is not None:
        fail(f"{problem}; over SSH, `ssh -t` provides one, and `slotdeck top --once` works without", USAGE)
    settings = check_settings(explicit)
    path = settings.socket or default_socket()
    admin = AdminClient(path)
    frame = engine_to_attach(admin)
    if frame is None:
        fail(absence(path), NO_ENGINE)
    notices = attach_notices(admin, frame, settings, explicit)
    raise typer.Exit(show_console(path, frame.boot_id, hosted=False, notices=notices))


@app.command(
    epilog=EPILOG,
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def model(context: typer.Context) -> None:
    """Download or describe a model: `slotdeck model fetch` and `slotdeck model info`; each has --help."""
    merge_flags(context, {}, ())
    from slotdeck.console.hosting.engine_process import ENGINE_COMMAND

    try:
        raise typer.Exit(subprocess.call([*ENGINE_COMMAND, "model", *(context.args or ["--help"])]))
    except KeyboardInterrupt:
        raise typer.Exit(1) from None


@app.command(epilog=EPILOG)
def info(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
    socket: SocketOption = None,
) -> None:
    """Show versions, paths and the running engine."""
    explicit = merge_flags(context, {} if socket is None else {"socket": socket}, ("socket",))
    from slotdeck.console.cli.info import collect, print_info

    print_info(collect(check_settings(explicit)), as_json)


app.command("top", epilog=EPILOG)(top)
app.add_typer(history_commands, name="history", context_settings=HELP_NAMES)
app.command("replay", epilog=EPILOG)(replay)
app.command("doctor", epilog=EPILOG)(doctor)
app.command("plan", epilog=EPILOG)(plan)
app.command("export", epilog=EPILOG)(export)
app.add_typer(config_commands, name="config", context_settings=HELP_NAMES)
app.command("load", epilog=EPILOG)(load)
app.command("bench", epilog=EPILOG)(bench)
app.command("probe", epilog=EPILOG)(probe)
app.command("demo", epilog=EPILOG)(demo)


def run() -> None:
    """Entry point of the installed command."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # A terminal without UTF-8 gets "?" for "…", never a crash.
    app()
