"""`slotdeck config show`: every setting, its value and its source. Keys are never printed."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path
from typing import Annotated, Any

import typer

from slotdeck.console.cli.exits import EPILOG
from slotdeck.console.cli.flags import check_settings, merge_flags, setting_text, settings_flags
from slotdeck.engine.paths import config_file, default_socket
from slotdeck.engine.settings import SETTINGS, StartSettings

config_commands = typer.Typer(no_args_is_help=True, help="Show settings and where each value came from.")


@config_commands.command(epilog=EPILOG)
@settings_flags()
def show(
    context: typer.Context,
    settings: dict[str, Any],
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Show each setting, its value and its source: flag, variable, file or default.

    If the running engine uses another value, that is shown too.
    """
    explicit = merge_flags(_outermost(context), settings)
    chosen = check_settings(explicit)
    rows = _rows(chosen, explicit, _in_force(chosen))
    if as_json:
        print(json.dumps({"config": str(config_file()), "settings": rows, "console": _console_rows()}, indent=2))
        return
    print(f"{_note(config_file())}")
    _print(rows)
    print("  -: not set; the engine then chooses sizes and threads for the model and the machine")
    from slotdeck.console.terminal.configuration import console_file

    print(f"\n{_note(console_file())}")
    _print(_console_rows())


def _outermost(context: typer.Context) -> Any:
    """The context that holds the flags written before `config`."""
    while context.parent is not None and context.obj is None:
        context = context.parent  # type: ignore[assignment]
    return context


def _note(path: Path) -> str:
    return f"{path}{'' if path.is_file() else ' (does not exist)'}"


def _rows(chosen: StartSettings, explicit: dict[str, Any], in_force: dict[str, Any]) -> list[dict[str, Any]]:
    """Name, value and source of each setting, and ``in_force`` if the running engine has another value."""
    path = config_file()
    document = tomllib.loads(path.read_text("utf-8")) if path.is_file() else {}
    rows = []
    for name, setting in SETTINGS.items():
        if name in explicit:
            source = setting.flag
        elif setting.variable in os.environ:
            source = setting.variable
        else:
            source = str(path) if name in document else "default"
        value = _printable(name, getattr(chosen, name))
        row = {"name": name, "value": value, "source": source}
        if name in in_force and in_force[name] != value and in_force[name] is not None:
            row["in_force"] = in_force[name]
        rows.append(row)
    return rows


def _printable(name: str, value: Any) -> Any:
    if name == "api_key":
        return [label.partition("=")[0] for label in value]
    return str(value) if isinstance(value, Path) else value


def _in_force(chosen: StartSettings) -> dict[str, Any]:
    """The values of the running engine; empty if none runs."""
    from slotdeck.console.client.admin import AdminClient, AdminError, NoEngineError

    try:
        listed = AdminClient(chosen.socket or default_socket()).call("GET", "/admin/settings")["settings"]
    except (AdminError, NoEngineError):
        return {}
    return {row["name"]: row.get("value") for row in listed}


def _console_rows() -> list[dict[str, Any]]:
    from slotdeck.console.terminal.configuration import ConsoleConfiguration, console_file, load_configuration

    read, default = load_configuration(), ConsoleConfiguration()
    rows: list[dict[str, Any]] = []
    for name in ("theme", "rate", "ascii", "mouse", "keys"):
        value = getattr(read, name)
        rows.append(
            {
                "name": name,
                "value": None if value in ("", {}) else value,
                "source": "default" if value == getattr(default, name) else str(console_file()),
            }
        )
    return rows + [{"name": "problem", "value": text, "source": str(console_file())} for text in read.problems]


def _print(rows: list[dict[str, Any]]) -> None:
    """Print name, value and source in columns, followed by the running engine's value if it differs."""
    texts = [(row["name"], _text(row["value"]), row["source"], row.get("in_force")) for row in rows]
    name_cells = max(len(name) for name, *_ in texts)
    value_cells = min(40, max(len(value) for _, value, *_ in texts))
    for name, value, source, in_force in texts:
        running = "" if in_force is None else f"   the running engine uses {_text(in_force)}"
        print(f"  {name:<{name_cells}}  {value:<{value_cells}}  {source}{running}".rstrip())


def _text(value: Any) -> str:
    if value is None or value == []:
        return "-"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, dict):
        return ", ".join(f"{key} = {entry}" for key, entry in value.items())
    return setting_text(value)
