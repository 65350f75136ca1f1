"""`slotdeck info`: versions, paths and the running engine, without heavy imports."""

from __future__ import annotations

import json
import platform
from importlib import metadata
from typing import Any

from slotdeck.console.client.admin import AdminClient, AdminError
from slotdeck.console.hosting.process import coming
from slotdeck.engine import __version__
from slotdeck.engine.paths import cache_folder, config_file, default_socket, state_folder
from slotdeck.engine.settings import StartSettings

LIBRARIES = ("torch", "tokenizers", "gguf", "fastapi", "uvicorn", "textual", "httpx")


def collect(settings: StartSettings) -> dict[str, Any]:
    """Versions, paths and the running engine as JSON values; ``engine`` is ``None`` if none runs or starts."""
    socket = settings.socket or default_socket()
    config = config_file()
    return {
        "versions": {"slotdeck": __version__, "python": platform.python_version()}
        | {name: _version(name) for name in LIBRARIES},
        "paths": {
            "config": str(config),
            "config_exists": config.is_file(),
            "cache": str(cache_folder()),
            "state": str(state_folder()),
            "log": str(state_folder() / "engine.log"),
            "socket": str(socket),
        },
        "engine": _engine(AdminClient(socket)),
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _engine(admin: AdminClient) -> dict[str, Any] | None:
    try:
        frame = admin.running()
        if frame is None:
            return None if (problem := coming(admin.path)) is None else {"problem": problem}
        settings = admin.call("GET", "/admin/settings")["settings"]
    except AdminError as error:
        return {"problem": str(error)}
    return {
        "pid": frame.engine.pid,
        "url": frame.engine.url,
        "model": frame.engine.model,
        "weights": frame.engine.weights,
        "kv_dtype": frame.engine.kv_dtype,
        "kernels": frame.engine.kernels,
        "threads": frame.engine.threads,
        "notes": " ".join(frame.engine.notes) or None,
        "health": frame.health,
        "health_reason": frame.health_reason,
        "uptime_seconds": None if frame.uptime is None else round(frame.uptime, 1),
        "settings": {row["name"]: row.get("value") for row in settings},
    }


def print_info(info: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(info, indent=2))
        return
    _section("versions", {name: version or "not installed" for name, version in info["versions"].items()})
    paths = dict(info["paths"])
    if not paths.pop("config_exists"):
        paths["config"] += "  (does not exist: defaults apply)"
    _section("paths", paths)
    engine = info["engine"]
    if engine is None:
        print("engine\n  none runs; `slotdeck` starts one")
        return
    settings = engine.pop("settings", None)
    _section("engine", {name: value for name, value in engine.items() if value is not None})
    if settings:
        _section("settings in force", {name: value for name, value in settings.items() if value not in (None, [])})


def _section(title: str, rows: dict[str, Any]) -> None:
    print(title)
    width = max(len(name) for name in rows)
    for name, value in rows.items():
        print(f"  {name.replace('_', ' '):<{width}}  {value}")
