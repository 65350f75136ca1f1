"""Rules about memory: the machine swaps, or the KV pool is too small for what runs."""

from __future__ import annotations

from math import ceil

from slotdeck.console.advice.finding import Finding, Value, bytes_text, time_text
from slotdeck.console.advice.room import larger_pool
from slotdeck.console.advice.window import Window, in_state, occupied
from slotdeck.engine.telemetry.frame import Frame

SWAPPING = 100_000.0
"""Bytes per second of OS swap that are no accident."""
PRESSED = 10.0
"""Percent of the time in which tasks waited for memory (PSI)."""
MUCH_AGAIN = 0.2
"""Part of all prefill that is done twice, from which preemption is critical."""
LONG_STALL = 10.0
"""Seconds that one request stood still, from which it is too."""


def os_swap(w: Window) -> Finding | None:
    """The machine moves memory to disk and back, or tasks wait for memory."""

    def moved(frame: Frame) -> float | None:
        host = frame.host
        return None if host.os_swap_in is None else host.os_swap_in + (host.os_swap_out or 0.0)

    def swaps(frame: Frame) -> bool:
        return (moved(frame) or 0.0) > SWAPPING or (frame.host.memory_pressure or 0.0) > PRESSED

    swapping = sum((moved(frame) or 0.0) > SWAPPING for frame in w.frames)
    pressure = w.highest(lambda frame: frame.host.memory_pressure) or 0.0
    pressed = w.share(lambda frame: (frame.host.memory_pressure or 0.0) > PRESSED)
    if swapping < max(3, len(w.frames) // 20) and not (pressed > 0.2 and len(w.frames) >= 3):
        return None
    host, slots = w.last.host, w.last.limits.slots or 0
    evidence = [
        f"OS swap moved up to {bytes_text(w.highest(moved))}/s, in {swapping} of {len(w.frames)} frames",
        f"tasks waited for memory in up to {pressure:.0f}% of the time",
    ]
    if host.memory_used is not None and host.memory_total is not None:
        evidence.append(f"memory {bytes_text(host.memory_used)} of {bytes_text(host.memory_total)} in use")
    if w.latency.itl_p95 is not None:
        evidence.append(f"ITL p95 {time_text(w.latency.itl_p95)}")
    fewer: dict[str, Value] = {"slots": slots // 2} if slots > 1 else {}
    return Finding(
        "os_swap", "critical", "The machine swaps", tuple(evidence),
        "a smaller model or a smaller pool (--kv-tokens) at the next start"
        + (f"; until then slots {slots} → {slots // 2}" if fewer else ""),
        "Weights or KV lie on the disk when a step needs them, so every token waits for it; no other setting helps.",
        fewer, cost=w.seconds_of(lambda f: (occupied(f) + (f.waiting_count or 0)) * swaps(f)),
    )  # fmt: skip


def preemption(w: Window) -> Finding | None:
    """Running requests lose their KV to those admitted before them: some wait far longer than the others."""
    count = w.rose("preemptions")
    if not count:
        return None
    again, computed = w.rose("recomputed_tokens"), w.rose("prompt_tokens")
    part = again / computed if computed else 0.0
    hit = [seen.slot for seen in w.requests if seen.slot.preemptions]
    stalled = max((slot.stalled or 0.0 for slot in hit), default=None)
    evidence = [
        f"{count} preemptions, {again} tokens computed a second time"
        + (f": {part:.0%} of all prefill" if part >= 0.01 else "")
    ]
    if hit and stalled is not None:
        evidence.append(
            f"{len(hit)} of {len(w.requests)} requests seen were hit, one stood still for {time_text(stalled)}"
        )
    if w.fullest is not None:
        evidence.append(f"the KV pool was up to {w.fullest:.0%} live")
    changes, turn = _less_or_larger(w)
    paused = w.seconds_of(in_state("preempted", "swapped"))
    reading = again / (w.latency.prompt_per_second or 0.0) if w.latency.prompt_per_second else 0.0
    return Finding(
        "preemption", "critical" if part >= MUCH_AGAIN or (stalled or 0.0) > LONG_STALL else "warn",
        "Running requests lose their KV", tuple(evidence), turn,
        "The pool is too small for what runs at once, so the newest are stopped and computed again: one user waits "
        "far longer while the averages look fine.",
        changes, cost=max(paused, w.grew("stalled_seconds")) + min(reading, w.seconds),
    )  # fmt: skip


def _less_or_larger(w: Window) -> tuple[dict[str, Value], str]:
    """A larger pool if the memory is known to hold it, else fewer slots if that helps, and the words for both."""
    slots, total, size = w.last.limits.slots or 1, w.last.pool.total or 0, w.request_size
    if not total:
        return {}, "a larger pool, or fewer slots"
    wanted = max(ceil(total * 1.25), slots * ceil((size or 0) * 1.1))
    larger = larger_pool(w, wanted)
    fitting = int(total * 0.95 // size) if total and size else 0
    fewer = fitting if 1 <= fitting < slots else None
    pool = f"kv_tokens {total} → {larger}"
    if larger is not None and (w.fits_memory(larger) or fewer is None):
        return {"kv_tokens": larger}, pool + (f", or slots {slots} → {fewer}" if fewer else "")
    if fewer is not None:
        return {"slots": fewer}, f"slots {slots} → {fewer}" + (f", or a larger pool: {pool}" if larger else "")
    return {}, "a smaller context: the memory holds no larger pool"
