"""The machine: its device, memory and cores, and which types of weights it computes fast."""

from __future__ import annotations

import math
import os
from pathlib import Path

import psutil
import torch

from slotdeck.engine.model.errors import UsageError

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
"""Types of weights for torch, by their names in the settings."""


def choose_device(name: str) -> torch.device:
    """The device for "auto", "cpu", "cuda" or "cuda:N". Raises UsageError if it does not exist."""
    if name == "auto":
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    if name == "cpu":
        return torch.device("cpu")
    kind, _, number = name.partition(":")
    if kind != "cuda" or (number and not number.isdecimal()) or name.endswith(":"):
        raise UsageError(f"unknown device {name!r}: use auto, cpu, cuda or cuda:N")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    index = int(number or 0)
    if index >= count:
        found = f"{count} CUDA devices" if count else "no CUDA device (or a CPU build of torch)"
        raise UsageError(f"device {name!r} is not there: torch finds {found}. Use --device auto or cpu.")
    return torch.device("cuda", index)


def choose_dtype(name: str, device: torch.device) -> tuple[str, str]:
    """Type of weights for torch ("fp32" or "bf16"), and one sentence that says why. ``name`` may be "auto"."""
    if name not in ("auto", *DTYPES):
        raise UsageError(f"unknown type of weights {name!r}: use auto, int8, int4, {' or '.join(DTYPES)}")
    if name != "auto":
        return name, f"Weights are {name}, as asked."
    if device.type == "cuda":
        if torch.cuda.is_bf16_supported():
            return "bf16", "Weights are bf16: this GPU computes it at full speed and it halves the memory."
        return "fp32", "Weights are fp32: this GPU does not compute bf16."
    if cpu_has_fast_bf16():
        return "bf16", "Weights are bf16: this CPU has instructions for it; fp32 would take twice the time and memory."
    return "fp32", "Weights are fp32: this CPU has no fast bf16 (AVX512-BF16 or AMX)."


def cpu_has_fast_bf16() -> bool:
    """Whether the CPU has AVX512-BF16 or AMX, as torch sees it."""
    checks = (getattr(torch.cpu, name, None) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"))
    return any(check is not None and check() for check in checks)


def cpu_has_amx() -> bool:
    """Whether the CPU has AMX matrix units. torch uses them in bf16; the native kernels do not."""
    check = getattr(torch.cpu, "_is_amx_tile_supported", None)
    return check is not None and bool(check())


def available_memory(device: torch.device) -> int:
    """Bytes that can be allocated on the device without swapping, within the limit of a container."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    available = int(psutil.virtual_memory().available)
    try:
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
        counters = dict(line.split() for line in Path("/sys/fs/cgroup/memory.stat").read_text().splitlines())
        # Cached files count as used, but the kernel drops them when memory is needed.
        used -= int(counters.get("inactive_file", 0)) + int(counters.get("active_file", 0))
    except (OSError, ValueError):
        return available  # no limit ("max"), or not Linux
    return max(0, min(available, limit - used))


def total_memory(device: torch.device) -> int:
    """Bytes of all memory of the device, used or not."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[1])
    return int(psutil.virtual_memory().total)


def physical_cores() -> int:
    """Physical cores that this process may use, bounded by its affinity and by a container's CPU quota."""
    cores = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = min(cores, len(os.sched_getaffinity(0)))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        cores = min(cores, math.ceil(int(quota) / int(period)))
    except (OSError, ValueError):
        pass  # no quota ("max"), or not Linux
    return max(1, cores)
