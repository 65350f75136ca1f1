"""Whether there is room for what a rule would turn: for more slots in the pool, for a larger pool in memory."""

from __future__ import annotations

from math import ceil

from slotdeck.console.advice.finding import SLOW_GAP, Value, bounded
from slotdeck.console.advice.window import Window

SAFE = 0.85
"""Part of the pool that more slots may fill: concurrency stays a little below what memory allows."""


def larger_pool(w: Window, wanted: int) -> int | None:
    """A pool of about ``wanted`` tokens in whole blocks; ``None`` if the memory is known to hold no such pool."""
    block = w.last.pool.block_size or 1
    size = bounded("kv_tokens", ceil(wanted / block) * block)
    return None if w.fits_memory(size) is False else size


def another_slot(w: Window, *, more: int) -> tuple[dict[str, Value], str]:
    """The change that lets up to ``more`` run beside those who do, and its words; without a change if nothing does."""
    limits, total = w.last.limits, w.last.pool.total
    slots = limits.slots or 0
    wanted = bounded("slots", slots + max(1, min(more, max(slots, 4))))
    if limits.mode in ("serial", "static"):
        turn = f"mode {limits.mode} → continuous"
        if slots == 1:
            return {"mode": "continuous", "slots": wanted}, f"{turn}, slots 1 → {wanted}"
        return {"mode": "continuous"}, turn
    if (w.latency.itl_p50 or 0.0) >= SLOW_GAP:
        return {}, "a smaller model or a faster machine: with more slots text would come slower than it is read"
    full, preempted = w.fullest, w.rose("preemptions")
    by_size = total // limits.context if total and limits.context else wanted
    room = max(by_size, int(slots * SAFE / full) if full else 0)
    if room > slots and not preempted and wanted > slots:
        better = min(wanted, room)
        return {"slots": better}, f"slots {slots} → {better}"
    if not total or not slots:
        return {}, "a larger pool, then more slots"
    size = larger_pool(w, ceil(total * wanted / slots))
    if size is None:
        return {}, "shorter contexts or a smaller model: the memory holds no larger pool"
    turn = f"a larger pool: kv_tokens {total} → {size}"
    if preempted:
        return {"kv_tokens": size}, f"{turn}; more slots would only preempt more"
    return {"kv_tokens": size, "slots": wanted}, f"{turn}, with slots {slots} → {wanted}"
