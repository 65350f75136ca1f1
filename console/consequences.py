"""What would follow from a setting, said before it is applied. Pure functions of the newest frame."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from console.widgets.formats import tokens
from engine.telemetry.frame import Frame

Level = Literal["ok", "warn", "critical"]

FEWEST_MEASURED_TOKENS = 32
"""A shorter prompt says too little about the pace of prefill."""


@dataclass(frozen=True)
class Consequence:
    """One phrase for the status line and how serious it is."""

    text: str
    level: Level = "ok"


def consequence(name: str, value: int, frame: Frame) -> Consequence:
    """What setting ``name`` to ``value`` means for those who run, wait and come. ``name`` is a live setting."""
    return {"slots": _slots, "context": _context, "queue": _queue, "budget": _budget}[name](value, frame)


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


def _prefill_pace(frame: Frame) -> float | None:
    """Seconds for one prefill token, from prefills just measured; None if there are none.

    Time of decodes in the same steps is part of it, so it is an upper bound; the quickest one is the closest.
    """
    paces = [
        slot.prefill / slot.prompt_tokens
        for slot in frame.slots
        if slot.prefill and not slot.preemptions and (slot.prompt_tokens or 0) >= FEWEST_MEASURED_TOKENS
        if slot.prompt_tokens
    ]
    return min(paces, default=None)


def _two_digits(value: float) -> str:
    """An estimate with no more digits than it deserves."""
    if value < 10:
        return f"{value:.0f}" if value >= 1 else "1"
    digits = len(str(int(value))) - 2
    return str(int(round(value, -digits)))
