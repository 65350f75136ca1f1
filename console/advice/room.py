"""Whether a remedy fits: whether the pool has room for more slots, and the memory for a larger pool."""

from __future__ import annotations

from math import ceil

from slotdeck.console.advice.finding import SLOW_ITL, Value, bounded
from slotdeck.console.advice.window import Window

MAX_PLANNED_USAGE = 0.85
"""Part of the pool that more slots may fill. The rest is a margin against preemption."""


def larger_pool(window: Window, wanted: int) -> int | None:
    """A pool of at least ``wanted`` tokens in whole blocks; ``None`` if it is known not to fit the memory.

    The range of the setting ``kv_tokens`` limits the result.
    """
    block = window.last.pool.block_size or 1
    size = bounded("kv_tokens", ceil(wanted / block) * block)
    return None if window.fits_memory(size) is False else size


def another_slot(window: Window, *, more: int) -> tuple[dict[str, Value], str]:
    """The change that lets up to ``more`` additional requests run at once, and the remedy in words.

    The change is empty if no setting allows that.
    """
    limits, total = window.last.limits, window.last.pool.total
    slots = limits.slots or 0
    wanted = bounded("slots", slots + max(1, min(more, max(slots, 4))))
    if limits.mode in ("serial", "static"):
        remedy = f"mode {limits.mode} → continuous"
        if slots == 1:
            return {"mode": "continuous", "slots": wanted}, f"{remedy}, slots 1 → {wanted}"
        return {"mode": "continuous"}, remedy
    if (window.latency.itl_p50 or 0.0) >= SLOW_ITL:
        return {}, "a smaller model or a faster machine: with more slots, text would appear more slowly than it is read"
    usage, preempted = window.max_pool_usage, window.increase("preemptions")
    by_size = total // limits.context if total and limits.context else wanted
    room = max(by_size, int(slots * MAX_PLANNED_USAGE / usage) if usage else 0)
    if room > slots and not preempted and wanted > slots:
        better = min(wanted, room)
        return {"slots": better}, f"slots {slots} → {better}"
    if not total or not slots:
        return {}, "a larger pool, then more slots"
    size = larger_pool(window, ceil(total * wanted / slots))
    if size is None:
        return {}, "a smaller context or a smaller model: there is no memory for a larger pool"
    remedy = f"a larger pool: kv_tokens {total} → {size}"
    if preempted:
        return {"kv_tokens": size}, f"{remedy}; more slots would only cause more preemption"
    return {"kv_tokens": size, "slots": wanted}, f"{remedy}, with slots {slots} → {wanted}"
