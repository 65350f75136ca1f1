"""Measures the machine at most once a second: CPU, memory, OS swap, pressure, GPU. ``None`` means unknown."""

from __future__ import annotations

import resource
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from slotdeck.engine.telemetry.frame import HostInfo

PRESSURE_FILE = Path("/proc/pressure/memory")


def memory_pressure() -> float | None:
    """PSI "some avg10" of memory in percent; ``None`` if the kernel does not report it."""
    try:
        line = PRESSURE_FILE.read_text().splitlines()[0]
        return float(line.split("avg10=")[1].split()[0])
    except (OSError, IndexError, ValueError):
        return None


def _swap_counters() -> tuple[int, int, int] | None:
    """Bytes swapped in and out since boot, and bytes in use; ``None`` if unknown."""
    with warnings.catch_warnings():  # psutil warns where /proc/vmstat is missing, and answers 0
        warnings.simplefilter("error", RuntimeWarning)
        try:
            swap = psutil.swap_memory()
        except (RuntimeWarning, OSError):
            return None
    return swap.sin, swap.sout, swap.used


def open_gpu(device: str) -> Callable[[], tuple[float, int, int]] | None:
    """A function that gives utilisation in percent, total and used bytes of a CUDA device; ``None`` if it cannot."""
    if not device.startswith("cuda"):
        return None
    try:
        import pynvml

        pynvml.nvmlInit()
        index = int(device.partition(":")[2] or 0)
        handle: Any = pynvml.nvmlDeviceGetHandleByIndex(index)
    except Exception:
        return None

    def probe() -> tuple[float, int, int]:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        return float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu), int(memory.total), int(memory.used)

    return probe


class HostProbe:
    """Measures this machine and this process. Rates are taken between two samples, so the first sample has none."""

    def __init__(self, device: str = "cpu") -> None:
        self._process = psutil.Process()
        self._gpu = open_gpu(device)
        self._lock = threading.Lock()
        self._last: HostInfo | None = None
        self._last_time = 0.0
        self._swap: tuple[int, int, int] | None = None
        self._faults = 0

    def sample(self, now: float) -> HostInfo:
        """The newest measurement at ``now`` (monotonic seconds); it is at most one second old."""
        with self._lock:
            if self._last is None or now - self._last_time >= 1.0:
                self._last, self._last_time = self._measure(now), now
            return self._last

    def _measure(self, now: float) -> HostInfo:
        first, elapsed = self._last is None, now - self._last_time
        cpu, own_cpu = psutil.cpu_percent(interval=None), self._process.cpu_percent(interval=None)
        memory = psutil.virtual_memory()
        swap, faults = _swap_counters(), resource.getrusage(resource.RUSAGE_SELF).ru_majflt
        swap_in = swap_out = fault_rate = None
        if not first:
            fault_rate = (faults - self._faults) / elapsed
            if swap is not None and self._swap is not None:
                swap_in, swap_out = ((swap[i] - self._swap[i]) / elapsed for i in (0, 1))
        self._swap, self._faults = swap, faults
        gpu = self._measure_gpu()
        return HostInfo(
            cpu_percent=None if first else cpu,
            engine_cpu_percent=None if first else own_cpu,
            memory_total=memory.total,
            memory_used=memory.total - memory.available,
            engine_memory=self._process.memory_info().rss,
            os_swap_in=swap_in,
            os_swap_out=swap_out,
            os_swap_used=swap[2] if swap else None,
            major_faults=fault_rate,
            memory_pressure=memory_pressure(),
            gpu_percent=gpu[0] if gpu else None,
            gpu_memory_total=gpu[1] if gpu else None,
            gpu_memory_used=gpu[2] if gpu else None,
        )

    def _measure_gpu(self) -> tuple[float, int, int] | None:
        if self._gpu is None:
            return None
        try:
            return self._gpu()
        except Exception:  # the driver went away: unknown, and no reason to disturb serving
            return None
