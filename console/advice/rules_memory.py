"""Rules about memory: the machine swaps, or the KV pool is too small for what runs."""

from __future__ import annotations

from math import ceil

from slotdeck.console.advice.finding import Finding, Value
from slotdeck.console.advice.room import larger_pool
from slotdeck.console.advice.units import bytes_text, time_text
from slotdeck.console.advice.window import Window, in_state, occupied
from slotdeck.engine.telemetry.frame import Frame

MAX_SWAP_RATE = 100_000.0
"""Bytes per second of OS swap above which the machine is swapping."""
MAX_PRESSURE = 10.0
"""Percent of the time that tasks may wait for memory (PSI) before it is a problem."""
CRITICAL_RECOMPUTED_SHARE = 0.2
"""Part of all prefill that is computed twice, from which preemption is critical."""
CRITICAL_STALL = 10.0
"""Seconds that one request stood still, above which preemption is critical."""


def os_swap(window: Window) -> Finding | None:
    """The machine moves memory to disk and back, or tasks wait for memory."""

    def swap_rate(frame: Frame) -> float | None:
        host = frame.host
        return None if host.os_swap_in is None else host.os_swap_in + (host.os_swap_out or 0.0)

    def swaps(frame: Frame) -> bool:
        return (swap_rate(frame) or 0.0) > MAX_SWAP_RATE or (frame.host.memory_pressure or 0.0) > MAX_PRESSURE

    swapping = sum((swap_rate(frame) or 0.0) > MAX_SWAP_RATE for frame in window.frames)
    pressure = window.max_of(lambda frame: frame.host.memory_pressure) or 0.0
    pressed = window.share(lambda frame: (frame.host.memory_pressure or 0.0) > MAX_PRESSURE)
    if swapping < max(3, len(window.frames) // 20) and not (pressed > 0.2 and len(window.frames) >= 3):
        return None
    host, slots = window.last.host, window.last.limits.slots or 0
    evidence = [
        f"OS swap moved up to {bytes_text(window.max_of(swap_rate))}/s, in {swapping} of {len(window.frames)} frames",
        f"tasks waited for memory up to {pressure:.0f}% of the time",
    ]
    if host.memory_used is not None and host.memory_total is not None:
        evidence.append(f"{bytes_text(host.memory_used)} of {bytes_text(host.memory_total)} memory in use")
    if window.latency.itl_p95 is not None:
        evidence.append(f"ITL p95 {time_text(window.latency.itl_p95)}")
    fewer: dict[str, Value] = {"slots": slots // 2} if slots > 1 else {}
    return Finding(
        "os_swap", "critical", "The machine swaps", tuple(evidence),
        "a smaller model or a smaller pool (--kv-tokens) at the next start"
        + (f"; until then slots {slots} → {slots // 2}" if fewer else ""),
        "Weights or KV are on disk when a step needs them, so every token waits for the disk. No other setting helps.",
        fewer, cost=window.person_seconds(lambda f: (occupied(f) + (f.waiting_count or 0)) * swaps(f)),
    )  # fmt: skip


def preemption(window: Window) -> Finding | None:
    """Running requests lose their KV to requests that were admitted earlier, so a few wait far longer than others."""
    count = window.increase("preemptions")
    if not count:
        return None
    recomputed, computed = window.increase("recomputed_tokens"), window.increase("prompt_tokens")
    share = recomputed / computed if computed else 0.0
    hit = [seen.slot for seen in window.requests if seen.slot.preemptions]
    stalled = max((slot.stalled or 0.0 for slot in hit), default=None)
    evidence = [
        f"{count} preemptions; {recomputed} tokens were computed a second time"
        + (f", {share:.0%} of all prefill" if share >= 0.01 else "")
    ]
    if hit and stalled is not None:
        evidence.append(
            f"{len(hit)} of {len(window.requests)} observed requests were preempted; one stood still for "
            f"{time_text(stalled)}"
        )
    if window.max_pool_usage is not None:
        evidence.append(f"up to {window.max_pool_usage:.0%} of the KV pool was live")
    changes, remedy = _larger_pool_or_fewer_slots(window)
    paused = window.person_seconds(in_state("preempted", "swapped"))
    speed = window.latency.prompt_per_second
    reading = recomputed / speed if speed else 0.0
    return Finding(
        "preemption",
        "critical" if share >= CRITICAL_RECOMPUTED_SHARE or (stalled or 0.0) > CRITICAL_STALL else "warn",
        "Running requests lose their KV", tuple(evidence), remedy,
        "The pool is too small for all running requests, so the newest are stopped and computed again later. Their "
        "users wait far longer although the averages look fine.",
        changes, cost=max(paused, window.increase_seconds("stalled_seconds")) + min(reading, window.seconds),
    )  # fmt: skip


def _larger_pool_or_fewer_slots(window: Window) -> tuple[dict[str, Value], str]:
    """The change, and the remedy in words.

    This is a larger pool if it is known to fit the memory, or fewer slots if that helps.
    """
    slots, total, size = window.last.limits.slots or 1, window.last.pool.total or 0, window.request_size
    if not total:
        return {}, "a larger pool, or fewer slots"
    wanted = max(ceil(total * 1.25), slots * ceil((size or 0) * 1.1))
    larger = larger_pool(window, wanted)
    fitting = int(total * 0.95 // size) if size else 0
    fewer = fitting if 1 <= fitting < slots else None
    pool = f"kv_tokens {total} → {larger}"
    if larger is not None and (window.fits_memory(larger) or fewer is None):
        return {"kv_tokens": larger}, pool + (f", or slots {slots} → {fewer}" if fewer else "")
    if fewer is not None:
        return {"slots": fewer}, f"slots {slots} → {fewer}" + (f", or a larger pool: {pool}" if larger else "")
    return {}, "a smaller context: there is no memory for a larger pool"
