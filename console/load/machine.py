"""The machine that a measurement was made on, in words."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil


def describe_machine() -> dict[str, Any]:
    """CPU name, cores, memory in bytes, system, Python and torch version; ``None`` for what cannot be found out."""
    try:
        torch = metadata.version("torch")
    except metadata.PackageNotFoundError:
        torch = None
    return {
        "cpu": _cpu_name(),
        "physical_cores": psutil.cpu_count(logical=False),
        "logical_cores": psutil.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else psutil.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": torch,
    }


def machine_line(machine: dict[str, Any]) -> str:
    """The description in one line."""
    memory = machine["memory_bytes"] / (1 << 30)
    return (
        f"{machine['cpu'] or 'unknown CPU'}, {machine['usable_cores']} of {machine['logical_cores']} logical cores, "
        f"{memory:.1f} GiB RAM, {machine['system']}, Python {machine['python']}, torch {machine['torch'] or '–'}"
    )


def _cpu_name() -> str | None:
    try:
        for line in Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return " ".join(value.split())
    except OSError:
        pass
    return platform.processor() or None
