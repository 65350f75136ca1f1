"""What the machine does, from counters that a test sets: rates between two samples, and unknown where nothing tells."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slotdeck.engine.telemetry import host
from slotdeck.engine.telemetry.host import HostProbe, memory_pressure, open_gpu


class Machine:
    """Stands in for psutil and the kernel's counters."""

    def __init__(self) -> None:
        self.swapped_in, self.swapped_out, self.swap_used, self.faults = 1000, 20_000, 77, 5
        self.calls = 0

    def swap_memory(self) -> Any:
        return SimpleNamespace(sin=self.swapped_in, sout=self.swapped_out, used=self.swap_used)

    def virtual_memory(self) -> Any:
        self.calls += 1
        return SimpleNamespace(total=1000, available=300)

    def cpu_percent(self, interval: float | None) -> float:
        assert interval is None, "it would wait"
        return 41.0

    def getrusage(self, _who: int) -> Any:
        return SimpleNamespace(ru_majflt=self.faults)


class Process:
    def cpu_percent(self, interval: float | None) -> float:
        assert interval is None
        return 150.0

    def memory_info(self) -> Any:
        return SimpleNamespace(rss=12_345)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    made = Machine()
    for name in ("swap_memory", "virtual_memory", "cpu_percent"):
        monkeypatch.setattr(host.psutil, name, getattr(made, name))
    monkeypatch.setattr(host.psutil, "Process", Process)
    monkeypatch.setattr(host.resource, "getrusage", made.getrusage)
    monkeypatch.setattr(host, "PRESSURE_FILE", tmp_path / "pressure")
    return made


def test_the_first_sample_has_no_rates(machine: Machine) -> None:
    seen = HostProbe().sample(50.0)
    assert (seen.cpu_percent, seen.engine_cpu_percent) == (None, None), "psutil gives 0 the first time"
    assert (seen.os_swap_in, seen.os_swap_out, seen.major_faults) == (None, None, None)
    assert (seen.memory_total, seen.memory_used, seen.engine_memory, seen.os_swap_used) == (1000, 700, 12_345, 77)
    assert (seen.gpu_percent, seen.gpu_memory_total, seen.gpu_memory_used) == (None, None, None)


def test_rates_are_per_second_between_two_samples(machine: Machine) -> None:
    probe = HostProbe()
    probe.sample(50.0)
    machine.swapped_in, machine.swapped_out, machine.faults = 1400, 20_060, 25
    seen = probe.sample(54.0)
    assert (seen.os_swap_in, seen.os_swap_out, seen.major_faults) == (100.0, 15.0, 5.0)
    assert (seen.cpu_percent, seen.engine_cpu_percent) == (41.0, 150.0)
    machine.swapped_in = 1401
    assert probe.sample(55.0).os_swap_in == 1.0, "each rate starts from the sample before it"


def test_it_measures_at_most_once_a_second(machine: Machine) -> None:
    probe = HostProbe()
    first = probe.sample(50.0)
    assert probe.sample(50.99) is first
    assert machine.calls == 1
    assert probe.sample(51.0) is not first
    assert machine.calls == 2


def test_swap_that_the_kernel_does_not_tell_is_unknown(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def warned() -> Any:
        warnings.warn("no /proc/vmstat", RuntimeWarning, stacklevel=1)
        return machine.swap_memory()

    probe = HostProbe()
    probe.sample(50.0)
    monkeypatch.setattr(host.psutil, "swap_memory", warned)
    seen = probe.sample(52.0)
    assert (seen.os_swap_in, seen.os_swap_out, seen.os_swap_used) == (None, None, None)
    monkeypatch.setattr(host.psutil, "swap_memory", machine.swap_memory)
    assert probe.sample(54.0).os_swap_in is None, "there was no sample before it to count from"


def test_the_gpu_is_asked_and_may_go_away(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Any] = [(88.0, 24, 18), RuntimeError("driver gone")]

    def probe_gpu() -> tuple[float, int, int]:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[no-any-return]

    monkeypatch.setattr(host, "open_gpu", lambda device: probe_gpu if device == "cuda:1" else None)
    probe = HostProbe("cuda:1")
    seen = probe.sample(1.0)
    assert (seen.gpu_percent, seen.gpu_memory_total, seen.gpu_memory_used) == (88.0, 24, 18)
    assert probe.sample(2.0).gpu_percent is None
    assert open_gpu("cpu") is None


def test_memory_pressure_is_the_share_of_the_last_ten_seconds(machine: Machine) -> None:
    assert memory_pressure() is None, "the file is not there"
    host.PRESSURE_FILE.write_text(
        "some avg10=1.53 avg60=0.87 avg300=0.20 total=1\nfull avg10=0.07 avg60=0.01 avg300=0.00 total=2\n"
    )
    assert memory_pressure() == 1.53
    assert HostProbe().sample(1.0).memory_pressure == 1.53
    for nonsense in ("", "some\n", "some avg10=x\n"):
        host.PRESSURE_FILE.write_text(nonsense)
        assert memory_pressure() is None


def test_the_gpu_in_use_is_the_one_that_is_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    library = SimpleNamespace(
        nvmlInit=lambda: calls.append("init"),
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(total=100 + handle, used=10 + handle),
        nvmlDeviceGetUtilizationRates=lambda handle: SimpleNamespace(gpu=50 + handle),
    )
    monkeypatch.setitem(sys.modules, "pynvml", library)
    for device, number in (("cuda:3", 3), ("cuda", 0)):
        probe = open_gpu(device)
        assert probe is not None
        assert probe() == (50.0 + number, 100 + number, 10 + number)
    assert calls == ["init", "init"]
    monkeypatch.delattr(library, "nvmlInit")
    assert open_gpu("cuda") is None, "without a driver nothing is known"
