"""Memory and cores: the limits of a container count, and cached files do not."""

from __future__ import annotations

import os
from types import SimpleNamespace

import psutil
import pytest
import torch

from slotdeck.engine.model import hardware

CPU = torch.device("cpu")
GROUP = "/sys/fs/cgroup/"


@pytest.fixture
def container(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The files of a control group by name, on a machine with 10,000 bytes available and 8 cores for this process."""
    files: dict[str, str] = {}

    class FakePath:
        def __init__(self, path: str) -> None:
            self.name = path.removeprefix(GROUP)

        def read_text(self) -> str:
            if self.name not in files:
                raise FileNotFoundError(self.name)
            return files[self.name]

    monkeypatch.setattr(hardware, "Path", FakePath)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=10_000, total=64_000))
    monkeypatch.setattr(psutil, "cpu_count", lambda logical: 16)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    return files


def memory_files(limit: str, used: int) -> dict[str, str]:
    return {
        "memory.max": limit,
        "memory.current": str(used),
        "memory.stat": "anon 5\ninactive_file 300\nactive_file 20\nslab 7\n",
    }


def test_without_a_container_the_memory_is_what_the_machine_has(container: dict[str, str]) -> None:
    assert hardware.available_memory(CPU) == 10_000
    assert hardware.total_memory(CPU) == 64_000
    container.update(memory_files("max\n", 2000))
    assert hardware.available_memory(CPU) == 10_000


def test_a_container_s_limit_counts_and_cached_files_do_not(container: dict[str, str]) -> None:
    container.update(memory_files("5000\n", 2000))
    assert hardware.available_memory(CPU) == 5000 - (2000 - 300 - 20)
    container.update(memory_files("50000\n", 2000))
    assert hardware.available_memory(CPU) == 10_000  # the machine itself has less
    container.update(memory_files("1000\n", 2000))
    assert hardware.available_memory(CPU) == 0


@pytest.mark.parametrize(
    ("quota", "cores"), [(None, 8), ("max 100000", 8), ("250000 100000", 3), ("50000 100000", 1), ("1600000 100000", 8)]
)
def test_cores_are_bounded_by_affinity_and_quota(container: dict[str, str], quota: str | None, cores: int) -> None:
    if quota is not None:
        container["cpu.max"] = quota + "\n"
    assert hardware.physical_cores() == cores


def test_hyperthreads_are_not_counted(container: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "cpu_count", lambda logical: 12 if logical else 6)
    assert hardware.physical_cores() == 6
    assert not container
