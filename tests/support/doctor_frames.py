"""Frames for the rules of the doctor: a machine without problems, and what a test changes about it."""

from __future__ import annotations

from typing import Any

from slotdeck.engine.telemetry.frame import (
    CounterInfo,
    EngineInfo,
    Frame,
    HostInfo,
    LimitInfo,
    PoolInfo,
    SlotInfo,
    WaitingInfo,
    WindowInfo,
)
from tests.support import frames

START = frames.START
GIB = 1 << 30


WELL: dict[str, Any] = {
    "ttft_p50": 0.4, "ttft_p95": 0.9, "ttft_count": 40, "itl_p50": 0.05, "itl_p95": 0.07, "itl_max": 0.3,
    "itl_count": 2000, "wait_p95": 0.1, "wait_count": 40,
}  # fmt: skip


def slot(number: int, state: str = "decode", **more: Any) -> SlotInfo:
    values: dict[str, Any] = {
        "slot": number, "state": state, "request_id": None if state == "idle" else f"r{number}", "age": 5.0,
        "prompt_tokens": 400, "output_tokens": 40, "ttft": 0.4, "queue_wait": 0.0, "prefill": 0.4, "blocks": 28,
        "preemptions": 0, "stalled": 0.0,
    }  # fmt: skip
    return SlotInfo(**(values | more))


def frame(second: float = 0.0, *, late: dict[str, Any] | None = None, **changes: Any) -> Frame:
    """A frame without problems: two of four slots are busy and nobody waits. ``late`` changes both windows."""
    window = WELL | (late or {})
    counters = CounterInfo(**dict.fromkeys(CounterInfo.model_fields, 0))
    values: dict[str, Any] = {
        "boot_id": "one", "sequence": 1, "time": START + second, "uptime": 4000 + second,
        "engine": EngineInfo(trained_context=8192, load_seconds=6.0),
        "limits": LimitInfo(slots=4, context=2048, queue=16, budget=64),
        "pool": PoolInfo(total=8192, live=2000, cached=0, free=6192, block_size=16),
        "slots": (slot(0), slot(1), slot(2, "idle"), slot(3, "idle")), "running": 2, "waiting_count": 0,
        "counters": counters.model_copy(update=changes.pop("counters", {})),
        "minute": WindowInfo(seconds=60, **window), "ten_minutes": WindowInfo(seconds=600, **window),
        "generated_per_second": 40.0, "prompt_per_second": 100.0, "recent_ttft": (), "events": (),
        "host": HostInfo(memory_total=16 << 30, memory_used=8 << 30, os_swap_in=0.0, os_swap_out=0.0,
                         memory_pressure=0.0, major_faults=0.0),
    }  # fmt: skip
    return frames.frame(**(values | changes))


def run(seconds: int = 20, **changes: Any) -> list[Frame]:
    """The same frame for ``seconds`` seconds. A change that is a callable is called with the second."""
    return [
        frame(i, **{name: value(i) if callable(value) else value for name, value in changes.items()})
        for i in range(seconds)
    ]


def full(number: int = 4, **more: Any) -> tuple[SlotInfo, ...]:
    return tuple(slot(i, **more) for i in range(number))


def waiting(number: int, waited: float = 4.0, pace: float | None = 2.0) -> tuple[WaitingInfo, ...]:
    return tuple(
        WaitingInfo(request_id=f"w{i}", waited=waited, estimate=None if pace is None else pace * (i + 1))
        for i in range(number)
    )


QUEUED: dict[str, Any] = {
    "late": {"wait_p95": 4.2, "ttft_p95": 5.0}, "slots": full(), "waiting_count": 3, "waiting": waiting(3),
}  # fmt: skip


def limits(**changes: Any) -> LimitInfo:
    values: dict[str, Any] = {"slots": 4, "context": 2048, "queue": 16, "budget": 64} | changes
    return LimitInfo(**values)


def host(**changes: Any) -> HostInfo:
    values: dict[str, Any] = {"memory_total": 16 * GIB, "memory_used": 8 * GIB, "os_swap_in": 0.0, "os_swap_out": 0.0,
                              "memory_pressure": 0.0}  # fmt: skip
    return HostInfo(**(values | changes))
