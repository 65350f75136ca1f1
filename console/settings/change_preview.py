"""What would follow from a setting, said before it is applied. Pure functions of the newest frame."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from slotdeck.console.drawing.formats import byte_count, tokens
from slotdeck.console.settings.live_settings import Turn, Value
from slotdeck.engine.settings import SETTINGS
from slotdeck.engine.telemetry.frame import Frame

Level = Literal["ok", "warn", "critical"]

_LEVELS: tuple[Level, ...] = ("ok", "warn", "critical")

MIN_MEASURED_TOKENS = 32
"""A shorter prompt says too little about the pace of prefill."""


@dataclass(frozen=True)
class Consequence:
    """One phrase for the status line and how serious it is."""

    text: str
    level: Level = "ok"


def consequence(name: str, value: Value, frame: Frame) -> Consequence:
    """What setting ``name`` to ``value`` means for those who run, wait and come. ``name`` is a live setting."""
    say = _SAYERS.get(name)
    return Consequence(SETTINGS[name].help) if say is None else say(value, frame)


def consequence_of_all(wanted: Sequence[Turn], frame: Frame) -> Consequence:
    """What several settings mean together: the most serious of what follows from each with the others in force.

    With nothing serious it is the first one's. ``wanted`` is not empty.
    """
    values = {turn.name: turn.after for turn in wanted}
    together: dict[str, Any] = {name: values[name] for name in ("slots", "context", "kv_tokens") if name in values}
    pool: dict[str, Any] = {"total": values["kv_tokens"]} if "kv_tokens" in values else {}
    after = frame.model_copy(
        update={
            "limits": frame.limits.model_copy(update=together),
            "pool": frame.pool.model_copy(update=pool),
        }
    )
    found = [consequence(turn.name, turn.after, after) for turn in wanted]
    return max(found, key=lambda one: _LEVELS.index(one.level))


def _fit(slots: int | None, context: int | None, frame: Frame) -> Consequence:
    """Slots times context against the pool."""
    total = frame.pool.total
    if slots is None or context is None or total is None:
        return Consequence("size of the pool unknown")
    need = slots * context
    product = f"{slots} x {context} = {tokens(need)}"
    if need > total:
        return Consequence(f"{product} > pool {tokens(total)}, preemption possible", "warn")
    return Consequence(f"{product} fits the pool {tokens(total)}")


def _slots(value: int, frame: Frame) -> Consequence:
    occupied = sum(slot.state != "idle" for slot in frame.slots) if frame.slots else frame.running
    if occupied is not None and occupied > value:
        are = "is" if value == 1 else "are"
        return Consequence(f"{occupied} running, admission waits until {value} {are} left", "warn")
    return _fit(value, frame.limits.context, frame)


def _context(value: int, frame: Frame) -> Consequence:
    trained, total = frame.engine.trained_context, frame.pool.total
    if trained is not None and value > trained:
        return Consequence(f"the model was trained on {trained}, the engine will refuse more", "critical")
    if total is not None and value > total:
        return Consequence(f"more than the whole pool of {total} holds", "critical")
    fit = _fit(frame.limits.slots, value, frame)
    return Consequence(f"new requests only; {fit.text}", fit.level)


def _queue(value: int, frame: Frame) -> Consequence:
    waiting = frame.waiting_count or 0
    if waiting > value:
        stay = "stays" if waiting == 1 else "stay"
        return Consequence(f"{waiting} waiting {stay}, newcomers get 503", "warn")
    if value == 0:
        return Consequence("nobody waits: without a free slot newcomers get 503 at once")
    return Consequence(f"newcomers get 503 when {value} {'waits' if value == 1 else 'wait'}")


def _budget(value: int, frame: Frame) -> Consequence:
    now = frame.limits.budget
    if now is None or value == now:
        return Consequence("prefill tokens in one step")
    if value < now:
        return Consequence("running streams wait less per step, first tokens come later")
    pace = _prefill_pace(frame)
    if pace is None:
        return Consequence("first tokens come sooner, running streams may wait longer per step")
    milliseconds = (value - now) * pace * 1000
    return Consequence(f"a running stream may wait up to about {_two_digits(milliseconds)} ms more per step")


def _mode(value: str, frame: Frame) -> Consequence:
    running = sum(slot.state != "idle" for slot in frame.slots)
    drains = f"after the {running} now running: " if running else ""
    return {
        "serial": Consequence(f"{drains}one request at a time, all others wait", "warn"),
        "static": Consequence(f"{drains}whoever waits forms a batch, latecomers wait until all of it is done", "warn"),
        "continuous": Consequence(f"{drains}whoever ends frees its slot for the next in the same step"),
    }.get(value, Consequence(f"{drains}{value}"))


def _pool(value: int, frame: Frame) -> Consequence:
    """The pool in tokens, and in bytes if the engine says what a token takes."""
    context, slots, live = frame.limits.context, frame.limits.slots, frame.pool.live
    if context is not None and value < context:
        return Consequence(f"less than one context of {context}, the engine will refuse it", "critical")
    size = ""
    if frame.pool.bytes_per_token:
        size = f"{byte_count(value * frame.pool.bytes_per_token)}; "
    if live is not None and value < live:
        return Consequence(f"{size}{tokens(live)} are in use: the newest requests are preempted", "warn")
    if slots is None or context is None:
        return Consequence(f"{size}{tokens(value)} tokens")
    need = slots * context
    product = f"{slots} x {context} = {tokens(need)}"
    if need > value:
        return Consequence(f"{size}{product} > pool {tokens(value)}, preemption possible", "warn")
    return Consequence(f"{size}{product} fits")


def _preemption(value: str, frame: Frame) -> Consequence:
    if value == "swap":
        moved = ""
        if frame.pool.bytes_per_token and frame.limits.context:
            moved = f", up to {byte_count(frame.limits.context * frame.pool.bytes_per_token)} each way"
        where = " (RAM to RAM on a CPU)" if (frame.engine.device or "").startswith("cpu") else ""
        return Consequence(f"a preempted request's KV is copied to host memory and back{where}{moved}")
    return Consequence("a preempted request loses its KV and is computed again")


def _swap_space(value: int, frame: Frame) -> Consequence:
    if value == 0:
        return Consequence("no room to swap: preempted requests are computed again", "warn")
    per_token = frame.pool.bytes_per_token
    room = f"holds {tokens(value // per_token)} tokens of preempted requests; " if per_token else ""
    total, used = frame.host.memory_total, frame.host.memory_used
    if total is not None and used is not None and value > total - used:
        return Consequence(f"{room}more than the {byte_count(total - used)} of memory that are free", "critical")
    return Consequence(f"{room}beyond that, they are computed again")


def _prefix_cache(value: bool, frame: Frame) -> Consequence:
    if value:
        return Consequence("a repeated start of a prompt is not computed again")
    held = f"; {tokens(frame.pool.cached)} cached tokens are given up" if frame.pool.cached else ""
    return Consequence(f"every prompt is computed whole, first tokens come later{held}", "warn")


def _prefix_sharing(value: bool, frame: Frame) -> Consequence:
    if value:
        return Consequence("users share cached prefixes: one can tell by the time what another sent", "warn")
    return Consequence("each user's cached prefixes are their own")


def _itl_target(value: int, frame: Frame) -> Consequence:
    budget = frame.limits.budget
    if value == 0:
        return Consequence("off: each step prefills up to the budget" + (f" of {budget}" if budget else ""))
    now = frame.minute.itl_p95
    if now is None:
        return Consequence("prefill is cut so that steps stay below it; first tokens come later")
    if value / 1000 < now:
        return Consequence(f"below today's p95 of {now * 1000:.0f} ms: prefill is cut, first tokens come later", "warn")
    return Consequence(f"above today's p95 of {now * 1000:.0f} ms: prefill may take more of a step")


def _prefill_pace(frame: Frame) -> float | None:
    """Seconds for one prefill token, from prefills just measured; None if there are none.

    Time of decodes in the same steps is part of it, so it is an upper bound; the quickest one is the closest.
    """
    paces = [
        slot.prefill / slot.prompt_tokens
        for slot in frame.slots
        if slot.prefill and not slot.preemptions and (slot.prompt_tokens or 0) >= MIN_MEASURED_TOKENS
        if slot.prompt_tokens
    ]
    return min(paces, default=None)


def _two_digits(value: float) -> str:
    """An estimate with no more digits than it deserves."""
    if value < 10:
        return f"{value:.0f}" if value >= 1 else "1"
    digits = len(str(int(value))) - 2
    return str(int(round(value, -digits)))


_SAYERS: dict[str, Callable[[Any, Frame], Consequence]] = {
    "slots": _slots,
    "context": _context,
    "queue": _queue,
    "budget": _budget,
    "mode": _mode,
    "kv_tokens": _pool,
    "preemption": _preemption,
    "swap_space": _swap_space,
    "prefix_cache": _prefix_cache,
    "prefix_sharing": _prefix_sharing,
    "itl_target": _itl_target,
}
