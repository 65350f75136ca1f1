"""What a change of settings would do, shown before it is applied. Pure functions of the newest frame."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from slotdeck.console.drawing.formats import byte_count, tokens
from slotdeck.console.settings.changes import SettingChange
from slotdeck.console.settings.values import Value
from slotdeck.engine.settings import SETTINGS
from slotdeck.engine.telemetry.frame import Frame

Level = Literal["ok", "warn", "critical"]

_LEVELS: tuple[Level, ...] = ("ok", "warn", "critical")

MIN_MEASURED_TOKENS = 32
"""Prompts with fewer tokens say too little about the speed of prefill."""


@dataclass(frozen=True)
class ChangePreview:
    """One phrase for the status line, and how serious the effect is."""

    text: str
    level: Level = "ok"


def preview_change(name: str, value: Value, frame: Frame) -> ChangePreview:
    """What setting ``name`` to ``value`` means for running, waiting and future requests."""
    preview = _PREVIEWS.get(name)
    return ChangePreview(SETTINGS[name].help) if preview is None else preview(value, frame)


def preview_changes(wanted: Sequence[SettingChange], frame: Frame) -> ChangePreview:
    """What several changes mean together: the most serious effect of any of them, given all the others.

    If all are equally serious it is that of the first one. ``wanted`` is not empty.
    """
    values = {one.name: one.after for one in wanted}
    together: dict[str, Any] = {name: values[name] for name in ("slots", "context", "kv_tokens") if name in values}
    pool: dict[str, Any] = {"total": values["kv_tokens"]} if "kv_tokens" in values else {}
    after = frame.model_copy(
        update={
            "limits": frame.limits.model_copy(update=together),
            "pool": frame.pool.model_copy(update=pool),
        }
    )
    previews = [preview_change(one.name, one.after, after) for one in wanted]
    return max(previews, key=lambda preview: _LEVELS.index(preview.level))


def _compare_with_pool(slots: int | None, context: int | None, frame: Frame) -> ChangePreview:
    """Compare slots x context with the size of the pool."""
    total = frame.pool.total
    if slots is None or context is None or total is None:
        return ChangePreview("the size of the pool is unknown")
    need = slots * context
    product = f"{slots} x {context} = {tokens(need)}"
    if need > total:
        return ChangePreview(f"{product} > pool {tokens(total)}, preemption possible", "warn")
    return ChangePreview(f"{product} fits the pool {tokens(total)}")


def _slots(value: int, frame: Frame) -> ChangePreview:
    occupied = sum(slot.state != "idle" for slot in frame.slots) if frame.slots else frame.running
    if occupied is not None and occupied > value:
        are = "is" if value == 1 else "are"
        return ChangePreview(f"{occupied} running; no admission until {value} {are} left", "warn")
    return _compare_with_pool(value, frame.limits.context, frame)


def _context(value: int, frame: Frame) -> ChangePreview:
    trained, total = frame.engine.trained_context, frame.pool.total
    if trained is not None and value > trained:
        return ChangePreview(f"the model was trained for {trained} tokens; the engine refuses more", "critical")
    if total is not None and value > total:
        return ChangePreview(f"more than the whole pool of {total} tokens", "critical")
    need = _compare_with_pool(frame.limits.slots, value, frame)
    return ChangePreview(f"new requests only; {need.text}", need.level)


def _queue(value: int, frame: Frame) -> ChangePreview:
    waiting = frame.waiting_count or 0
    if waiting > value:
        stay = "stays" if waiting == 1 else "stay"
        return ChangePreview(f"{waiting} waiting {stay}, new requests get 503", "warn")
    if value == 0:
        return ChangePreview("without a free slot new requests get 503 at once")
    return ChangePreview(f"new requests get 503 when {value} {'waits' if value == 1 else 'wait'}")


def _queue_share(value: int, frame: Frame) -> ChangePreview:
    queue = frame.limits.queue
    if value >= 100:
        return ChangePreview("one user can fill the whole queue; then others get 503", "warn")
    if queue is None:
        return ChangePreview(f"a user with {value}% of the queue gets 503, others still get in")
    places = max(1, queue * value // 100)
    places_in_words = "1 waiting request" if places == 1 else f"{places} waiting requests"
    return ChangePreview(f"a user with {places_in_words} gets 503, others still get in")


def _budget(value: int, frame: Frame) -> ChangePreview:
    now = frame.limits.budget
    if now is None or value == now:
        return ChangePreview("prefill tokens in one step")
    if value < now:
        return ChangePreview("running requests wait less per step, first tokens come later")
    per_token = _prefill_seconds_per_token(frame)
    if per_token is None:
        return ChangePreview("first tokens come sooner, running requests may wait longer per step")
    milliseconds = (value - now) * per_token * 1000
    return ChangePreview(f"a running request may wait up to about {_two_digits(milliseconds)} ms more per step")


def _mode(value: str, frame: Frame) -> ChangePreview:
    running = sum(slot.state != "idle" for slot in frame.slots)
    drains = f"once the {running} running have ended: " if running else ""
    return {
        "serial": ChangePreview(f"{drains}one request at a time, all others wait", "warn"),
        "static": ChangePreview(f"{drains}waiting requests form a batch, later ones wait until it is done", "warn"),
        "continuous": ChangePreview(f"{drains}a request that ends frees its slot for the next one in the same step"),
    }.get(value, ChangePreview(f"{drains}{value}"))


def _pool(value: int, frame: Frame) -> ChangePreview:
    """The pool in tokens, and in bytes if the engine reports the size of a token."""
    context, slots, live = frame.limits.context, frame.limits.slots, frame.pool.live
    if context is not None and value < context:
        return ChangePreview(f"less than one context of {context}; the engine refuses it", "critical")
    size = ""
    if frame.pool.bytes_per_token:
        size = f"{byte_count(value * frame.pool.bytes_per_token)}; "
    if live is not None and value < live:
        return ChangePreview(f"{size}{tokens(live)} are in use: the newest requests are preempted", "warn")
    if slots is None or context is None:
        return ChangePreview(f"{size}{tokens(value)} tokens")
    need = slots * context
    product = f"{slots} x {context} = {tokens(need)}"
    if need > value:
        return ChangePreview(f"{size}{product} > pool {tokens(value)}, preemption possible", "warn")
    return ChangePreview(f"{size}{product} fits")


def _preemption(value: str, frame: Frame) -> ChangePreview:
    if value == "swap":
        moved = ""
        if frame.pool.bytes_per_token and frame.limits.context:
            moved = f", up to {byte_count(frame.limits.context * frame.pool.bytes_per_token)} each way"
        where = " (RAM to RAM on a CPU)" if (frame.engine.device or "").startswith("cpu") else ""
        return ChangePreview(f"the KV of a preempted request is copied to host memory and back{where}{moved}")
    return ChangePreview("a preempted request loses its KV and is computed again")


def _swap_space(value: int, frame: Frame) -> ChangePreview:
    if value == 0:
        return ChangePreview("no swap space: preempted requests are computed again", "warn")
    per_token = frame.pool.bytes_per_token
    room = f"holds {tokens(value // per_token)} tokens of preempted requests; " if per_token else ""
    total, used = frame.host.memory_total, frame.host.memory_used
    if total is not None and used is not None and value > total - used:
        return ChangePreview(f"{room}more than the {byte_count(total - used)} of free memory", "critical")
    return ChangePreview(f"{room}any others are computed again")


def _prefix_cache(value: bool, frame: Frame) -> ChangePreview:
    if value:
        return ChangePreview("a repeated beginning of a prompt is not computed again")
    held = f"; {tokens(frame.pool.cached)} cached tokens are dropped" if frame.pool.cached else ""
    return ChangePreview(f"every prompt is computed in full, first tokens come later{held}", "warn")


def _prefix_sharing(value: bool, frame: Frame) -> ChangePreview:
    if value:
        return ChangePreview("users share cached prefixes: response times reveal what others sent", "warn")
    return ChangePreview("each user has cached prefixes of their own")


def _itl_target(value: int, frame: Frame) -> ChangePreview:
    budget = frame.limits.budget
    if value == 0:
        return ChangePreview("off: each step prefills up to the budget" + (f" of {budget}" if budget else ""))
    now = frame.minute.itl_p95
    if now is None:
        return ChangePreview("prefill is cut so that steps stay below it; first tokens come later")
    if value / 1000 < now:
        return ChangePreview(
            f"below the current p95 of {now * 1000:.0f} ms: prefill is cut, first tokens come later", "warn"
        )
    return ChangePreview(f"above the current p95 of {now * 1000:.0f} ms: prefill may take more of a step")


def _prefill_seconds_per_token(frame: Frame) -> float | None:
    """Seconds for one prefill token, from the prefills of running requests; ``None`` if none was measured.

    Decodes in the same steps are part of the measured time, so each value is an upper bound. The lowest is closest.
    """
    measured = [
        slot.prefill / slot.prompt_tokens
        for slot in frame.slots
        if slot.prefill and not slot.preemptions and (slot.prompt_tokens or 0) >= MIN_MEASURED_TOKENS
        if slot.prompt_tokens
    ]
    return min(measured, default=None)


def _two_digits(value: float) -> str:
    """An estimate rounded to two significant digits."""
    if value < 10:
        return f"{value:.0f}" if value >= 1 else "1"
    digits = len(str(int(value))) - 2
    return str(int(round(value, -digits)))


_PREVIEWS: dict[str, Callable[[Any, Frame], ChangePreview]] = {
    "slots": _slots,
    "context": _context,
    "queue": _queue,
    "queue_share": _queue_share,
    "budget": _budget,
    "mode": _mode,
    "kv_tokens": _pool,
    "preemption": _preemption,
    "swap_space": _swap_space,
    "prefix_cache": _prefix_cache,
    "prefix_sharing": _prefix_sharing,
    "itl_target": _itl_target,
}
