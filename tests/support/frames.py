"""Synthetic frames whose numbers agree with each other, for every situation that the Live page must show.

Deterministic: the same call gives the same frame. ``busy`` moves with its step, so that it can play as a stream.
"""

from __future__ import annotations

import math
from typing import Any

from slotdeck.engine.settings import LiveSettings
from slotdeck.engine.telemetry.frame import (
    CounterInfo,
    EngineInfo,
    Frame,
    FrameEvent,
    HostInfo,
    LimitInfo,
    PoolInfo,
    SlotInfo,
    WaitingInfo,
    WindowInfo,
)

START = 1_795_600_800.0
"""Wall clock of the first frame."""
PEOPLE = ("laptop", "office", "phone", "tablet", "kitchen", "garage", "nas", "studio", "den", "attic")

ENGINE = EngineInfo(
    version="0.1.0", pid=4242, model="SmolLM2-135M-Instruct", weights="fp32", kv_dtype="fp32", device="cpu",
    threads=2, url="http://127.0.0.1:8000", trained_context=8192, load_seconds=2.1, weight_bytes=540_000_000,
    layers=30, kv_heads=3, head_dim=64, parameters=134_515_008,
    notes=("fp32 weights: this CPU computes bf16 slowly",),
)  # fmt: skip
HOST = HostInfo(
    cpu_percent=97, engine_cpu_percent=188, memory_total=24 << 30, memory_used=int(1.9 * (1 << 30)),
    engine_memory=900 << 20, os_swap_in=0, os_swap_out=0, os_swap_used=0, major_faults=0, memory_pressure=0.0,
)  # fmt: skip
MINUTE = WindowInfo(
    seconds=60, ttft_p50=0.61, ttft_p95=1.8, ttft_count=41, itl_p50=0.074, itl_p95=0.096, itl_max=1.43,
    itl_count=2310, wait_p95=0.9, wait_count=41, generated_per_second=58, prompt_per_second=131,
)  # fmt: skip
TEN = WindowInfo(
    seconds=600, ttft_p50=0.58, ttft_p95=1.7, ttft_count=388, itl_p50=0.072, itl_p95=0.094, itl_max=2.2,
    itl_count=21_400, wait_p95=0.8, wait_count=388, generated_per_second=55, prompt_per_second=120,
)  # fmt: skip
TTFT = (0.42, 0.3, 0.51, 0.88, 0.62, 0.47, 1.8, 0.44, 0.5, 0.95, 0.4, 0.39, 0.7, 0.61, 0.6, 1.1, 0.35, 0.42, 0.9, 0.95)


def gaps(seed: int, step: int = 0, stall: int | None = None) -> tuple[float, ...]:
    """24 gaps around 74 ms, in seconds. With ``stall``, the gap that many places from the end is a long one."""
    values = [0.074 * (1 + 0.35 * math.sin(seed * 1.7 + (step + i) * 0.9)) for i in range(24)]
    if stall is not None:
        values[-stall] = 0.74
    return tuple(values)


def decoding(slot: int, user: str | None, prompt: int, output: int, **more: Any) -> SlotInfo:
    """A slot whose request decodes."""
    wait, fill = more.pop("queue_wait", 0.0), more.pop("prefill", 0.42)
    values: dict[str, Any] = {
        "slot": slot, "state": "decode", "request_id": f"r{slot}", "user": user, "prompt_tokens": prompt,
        "computed_tokens": prompt + output - 1, "output_tokens": output, "max_tokens": 512, "age": 12.0,
        "ttft": 0.003 + wait + fill, "intake": 0.003, "queue_wait": wait, "prefill": fill, "itl_p95": 0.088,
        "gaps": gaps(slot), "preemptions": 0, "recomputed_tokens": 0, "stalled": 0.0,
        "blocks": -(-(prompt + output) // 16),
    }  # fmt: skip
    return SlotInfo(**(values | more))


def steady_slots(step: int = 0) -> tuple[SlotInfo, ...]:
    """Two slots decode, one prefills, one is idle."""
    return (
        decoding(0, "laptop", 812, 133 + step, gaps=gaps(0, step, stall=4)),
        SlotInfo(
            slot=1, state="prefill", request_id="r1", user="office", prompt_tokens=1930, computed_tokens=640,
            output_tokens=0, max_tokens=118, age=5.0, intake=0.004, queue_wait=0.31, preemptions=0, blocks=40,
        ),
        decoding(2, "phone", 96, 410 + step, prefill=0.11, itl_p95=0.091),
        SlotInfo(slot=3),
    )  # fmt: skip


def limits_of(**changes: Any) -> LimitInfo:
    """The default settings, with these changes."""
    values = LiveSettings().model_dump() | {"revision": 3, "budget_in_force": 64}
    return LimitInfo(**(values | changes))


def frame(**changes: Any) -> Frame:
    """A frame of a steady engine, with ``changes`` to its fields."""
    slots = changes.pop("slots", steady_slots())
    limits = changes.pop("limits", limits_of())
    live = sum((slot.computed_tokens or 0) for slot in slots)
    waiting = changes.pop("waiting", ())
    values: dict[str, Any] = {
        "boot_id": "boot-1", "sequence": 1, "time": START, "uptime": 133.0, "engine": ENGINE, "limits": limits,
        "pool": PoolInfo(total=8192, live=live, cached=0, free=8192 - live, block_size=16, bytes_per_token=46_080),
        "slots": slots, "running": sum(s.state in ("prefill", "decode") for s in slots),
        "waiting_count": len(waiting), "waiting": waiting,
        "counters": CounterInfo(
            received=124, finished=118, cancelled=1, gave_up_waiting=0, failed=0, rejected=0, invalid=0,
            preemptions=0, recomputed_tokens=0, prompt_tokens=48_212, generated_tokens=14_120, steps=15_002,
            kv_swap_bytes=0,
        ),
        "minute": MINUTE, "ten_minutes": TEN, "generated_per_second": 61.0, "prompt_per_second": 140.0,
        "recent_ttft": TTFT, "host": HOST, "events": EVENTS,
    }  # fmt: skip
    return Frame(**(values | changes))


def event(seconds: float, kind: Any, text: str) -> FrameEvent:
    """An event ``seconds`` before the first frame."""
    return FrameEvent(time=START - seconds, kind=kind, text=text)


EVENTS = (
    event(21, "finished", "tablet finished in slot 1: 244 tokens in 19.2 s"),
    event(12, "admitted", "laptop admitted to slot 0 at once"),
    event(11.5, "first_token", "laptop got its first token after 0.42 s"),
    event(9, "setting_changed", "queue 8→16 by console (revision 3)"),
    event(5, "admitted", "office admitted to slot 1 after 0.31 s"),
)
WAITING = (
    WaitingInfo(request_id="w1", user="tablet", prompt_tokens=412, waited=3.1, estimate=2.0),
    WaitingInfo(request_id="w2", user="kitchen", prompt_tokens=88, waited=0.4, estimate=3.2),
)


def steady() -> Frame:
    """Three users are served and nobody waits."""
    return frame()


def nearly_full() -> Frame:
    """Four long conversations hold 94% of the pool and two requests wait."""
    slots = (
        decoding(0, "laptop", 1812, 213, gaps=gaps(0, stall=4)),
        decoding(1, "office", 1900, 120, gaps=gaps(1)),
        decoding(2, "phone", 1530, 301, queue_wait=0.6, gaps=gaps(2)),
        decoding(3, "den", 1650, 190, queue_wait=1.2, gaps=gaps(3)),
    )
    return frame(slots=slots, waiting=WAITING)


def preempting() -> Frame:
    """The pool is full: one request was preempted and waits for room, another one has been resumed."""
    slots = (
        decoding(0, "laptop", 1812, 233, gaps=gaps(0)),
        decoding(1, "office", 1900, 140, gaps=gaps(1)),
        decoding(2, "phone", 1530, 341, queue_wait=0.6, gaps=gaps(2, stall=2), preemptions=1, stalled=0.6),
        decoding(3, "den", 1650, 190, queue_wait=6.0, prefill=3.5, state="preempted", computed_tokens=0, blocks=0,
                 preemptions=2, stalled=4.2, recomputed_tokens=3640, itl_p95=1.43, gaps=()),
    )  # fmt: skip
    counters = frame().counters.model_copy(update={"preemptions": 3, "recomputed_tokens": 5472, "rejected": 2})
    events = (*EVENTS, event(4.2, "preempted", "den preempted in slot 3: 1840 tokens to compute again"))
    return frame(slots=slots, waiting=WAITING, counters=counters, events=events)


def empty() -> Frame:
    """An engine that has not been asked anything yet."""
    zero = dict.fromkeys(CounterInfo.model_fields, 0)
    return frame(
        slots=tuple(SlotInfo(slot=i) for i in range(4)), counters=CounterInfo(**zero), uptime=4.0,
        minute=WindowInfo(seconds=60), ten_minutes=WindowInfo(seconds=600), recent_ttft=(), events=(),
        generated_per_second=0.0, prompt_per_second=0.0, host=HOST.model_copy(update={"cpu_percent": 3}),
    )  # fmt: skip


def draining() -> Frame:
    """Slots were lowered from 4 to 2 while four ran."""
    limits = limits_of(revision=4, slots=2)
    return nearly_full().model_copy(update={"limits": limits})


def busy(step: int, slots: int = 20) -> Frame:
    """Step ``step`` of ``slots`` streaming at once, at four frames a second."""
    rows = tuple(
        decoding(i, PEOPLE[i % len(PEOPLE)], 90 + 13 * i, (20 * i + step * 3) % 400, gaps=gaps(i, step * 3),
                 itl_p95=0.08 + 0.001 * ((step + i) % 30))
        for i in range(slots)
    )  # fmt: skip
    limits = limits_of(slots=slots, context=1024, kv_tokens=slots * 1024)
    live = sum((row.computed_tokens or 0) for row in rows)
    total = slots * 1024
    return frame(
        slots=rows, limits=limits, sequence=step, time=START + step / 4, uptime=133 + step / 4,
        pool=PoolInfo(total=total, live=live, cached=0, free=total - live, block_size=16),
        generated_per_second=180.0 + step % 7, prompt_per_second=12.0,
        events=(event(-step / 4, "finished", f"{PEOPLE[step % 10]} finished in slot {step % slots}"),)
        if step % 4 == 0 else (),
    )  # fmt: skip
