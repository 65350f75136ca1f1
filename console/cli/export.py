"""`slotdeck export`: translates the settings in force, or those of flags or a plan, for another server."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from slotdeck.console.cli.exits import FAILED, USAGE, fail, say
from slotdeck.console.cli.flags import check_settings, merge_flags, settings_flags

if TYPE_CHECKING:
    from slotdeck.console.advice.export import ExportedSettings

FLAGS = ("slots", "context", "queue", "budget", "mode", "kv_dtype", "prefix_cache", "socket")
MAX_PLAN_BYTES = 4 << 20


@settings_flags(FLAGS)
def export(
    context: typer.Context,
    settings: dict[str, Any],
    server: Annotated[
        Literal["ollama", "llama-server", "vllm"], typer.Argument(help="ollama, llama-server or vllm", metavar="SERVER")
    ],
    *,
    plan: Annotated[
        Path | None,
        typer.Option("--plan", help="take the settings from a plan, a file of `slotdeck plan --json`", metavar="FILE",
                     show_default=False),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", help="the model in the form that server expects: a .gguf file, a folder or a name",
                     metavar="MODEL", show_default=False),
    ] = None,
    form: Annotated[
        Literal["systemd", "command"] | None,
        typer.Option("--as", help="systemd: a drop-in; command: a shell script; default: systemd for ollama",
                     metavar="systemd|command", show_default=False),
    ] = None,
    unit: Annotated[
        str | None,
        typer.Option("--unit", help="the service that the drop-in configures; default: the name of the server",
                     metavar="NAME", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:  # fmt: skip
    """Write settings for Ollama, llama-server or vLLM, with reasons and with commands that apply and check them.

    The settings are those of your running engine, or else the configured ones. --plan takes them from a plan instead.
    Flags override both. Comments say where a setting means something else on that server.
    """
    from slotdeck.console.advice.export import export_settings

    explicit = merge_flags(context, settings, FLAGS)
    if unit is not None and (not unit or not all(character.isalnum() or character in "-_.@" for character in unit)):
        fail(f"--unit must be the name of a service (letters, digits and - _ . @), not {unit!r}", USAGE)
    chosen = _from_plan(plan, explicit) if plan is not None else _in_force(explicit, server)
    if model is not None:
        chosen = dataclasses.replace(chosen, model=model)
    made = export_settings(server, chosen, form, None if unit is None else unit.removesuffix(".service"))
    if as_json:
        print(json.dumps(dataclasses.asdict(made), indent=2, ensure_ascii=False))
        return
    print(made.text, end="")
    if chosen.model is None and server != "ollama":
        say("no --model given: replace MODEL by the path or name of the model")


def _in_force(explicit: dict[str, Any], server: str) -> ExportedSettings:
    """The settings of the running engine, or else the configured ones; flags override both."""
    from slotdeck.console.advice.export import ExportedSettings
    from slotdeck.console.client.admin import AdminClient, AdminError
    from slotdeck.engine.paths import default_socket
    from slotdeck.engine.settings import LiveSettings

    wanted = check_settings(explicit)
    values = LiveSettings().model_dump()
    values |= {name: value for name in values if (value := getattr(wanted, name)) is not None and name != "kv_tokens"}
    kv_dtype: str | None = None if wanted.kv_dtype == "auto" else wanted.kv_dtype
    admin, source = AdminClient(wanted.socket or default_socket()), None
    try:
        frame = admin.running()
        if frame is not None:
            rows = admin.call("GET", "/admin/settings")["settings"]
            source = next((row["value"] for row in rows if row["name"] == "model"), None)
    except AdminError as error:
        frame = None
        say(f"{error}; exporting the configured settings")
    if frame is not None:
        limits = frame.limits
        known = {name: getattr(limits, name) for name in values if getattr(limits, name, None) is not None}
        values |= {name: value for name, value in known.items() if name not in explicit}
        if "mode" not in explicit and limits.next_mode is not None:
            values["mode"] = limits.next_mode
        if "kv_dtype" not in explicit:
            kv_dtype = frame.engine.kv_dtype or kv_dtype
    names = ("slots", "context", "queue", "budget", "mode", "prefix_cache")
    model = _usable_model(source or wanted.model, server)
    return ExportedSettings(**{name: values[name] for name in names}, kv_dtype=kv_dtype or "bf16", model=model)


def _usable_model(source: str, server: str) -> str | None:
    """The model's path if the other server can load it (a .gguf file or a folder), else ``None``."""
    path = Path(source).expanduser()
    fits = path.suffix == ".gguf" and path.is_file() if server == "llama-server" else path.is_dir()
    return str(path.resolve()) if fits and server != "ollama" else None


def _from_plan(path: Path, explicit: dict[str, Any]) -> ExportedSettings:
    """The settings of a plan; flags override them."""
    from slotdeck.console.advice.export import ExportedSettings
    from slotdeck.engine.core.kv_memory import KV_VALUE_BYTES
    from slotdeck.engine.settings import LiveSettings

    wanted = check_settings(explicit)
    try:
        if path.stat().st_size > MAX_PLAN_BYTES:
            raise ValueError("it is too large")
        document = json.loads(path.read_text("utf-8"))
        planned = {one["name"]: one["value"] for one in document["settings"]}
        kv_dtype, memory = document["kv"]["dtype"], document["memory"]
        share = float(memory["utilisation"]) if memory["gpu"] else None
        if not planned:
            raise ValueError("it recommends nothing, because not even the weights fit")
        planned = {name: planned[name] for name in ("slots", "context", "queue", "budget")}
        LiveSettings(**planned)
        if kv_dtype not in KV_VALUE_BYTES or (share is not None and not 0 < share <= 1):
            raise ValueError("its cache type or utilisation is unknown")
    except OSError as error:
        fail(f"{path}: {error.strerror or error}", FAILED)
    except (ValueError, KeyError, TypeError) as error:
        reason = str(error).splitlines()[0] if isinstance(error, ValueError) else "something is missing"
        fail(f"{path} is not a plan of `slotdeck plan --json`: {reason}", FAILED)
    given = {name: getattr(wanted, name) for name in planned if name in explicit}
    more = {name: getattr(wanted, name) for name in ("mode", "kv_dtype", "prefix_cache") if name in explicit}
    if more.get("kv_dtype") == "auto":
        del more["kv_dtype"]
    values = {"kv_dtype": kv_dtype} | planned | given | more | ({} if share is None else {"utilisation": share})
    return ExportedSettings(**values)
