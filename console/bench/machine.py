"""Describes the machine that a measurement was made on, and how busy it was."""

from __future__ import annotations

import os
import platform
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil


def describe_machine() -> dict[str, Any]:
    """CPU name, cores, memory in bytes, system, and versions of Python and torch; ``None`` if unknown."""
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


class OtherPrograms:
    """Measures how busy other programs keep the processor.

    This is all CPU time since the object was made, without this process and the one with ``pid``.
    """

    def __init__(self, pid: int | None) -> None:
        self._pids = [os.getpid(), *([] if pid is None else [pid])]
        self._started = time.monotonic()
        self._busy, self._own = self._read()

    def cores(self) -> float:
        """How many cores other programs kept busy, on average."""
        busy, own = self._read()
        seconds = max(time.monotonic() - self._started, 0.1)
        return max(0.0, (busy - self._busy - (own - self._own)) / seconds)

    def _read(self) -> tuple[float, float]:
        now = psutil.cpu_times()
        own = 0.0
        for pid in self._pids:
            try:
                spent = psutil.Process(pid).cpu_times()
            except psutil.Error:
                continue
            own += spent.user + spent.system
        return now.user + now.system + getattr(now, "nice", 0.0), own


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
