"""The last ten minutes, one sample a second: what plots and the slot timeline draw.

A :class:`Trace` is immutable and equal only to itself, so that what is drawn from it can be kept until the next one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from slotdeck.console.settings.values import LIVE_SETTINGS, describe_change
from slotdeck.engine.telemetry.frame import Frame, LimitInfo, SlotState

SECONDS = 600
"""Samples kept."""

MAX_HOLE = 2.0
"""Seconds between two frames of one connection."""

_LOUDNESS: dict[SlotState, int] = {"idle": 0, "decode": 1, "held": 2, "prefill": 3, "swapped": 4, "preempted": 5}
"""Of the states that a slot had within a second the one that says most is kept."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Who held a slot in a second."""

    state: SlotState
    request_id: str | None
    user: str | None


@dataclass(frozen=True, slots=True)
class Second:
    """One sample; ``None`` is unknown. Latencies in seconds over the 60 s before, rates per second over 5 s."""

    time: float
    """Wall clock."""
    ttft_p95: float | None
    itl_p95: float | None
    generated: float | None
    prompt: float | None
    pool_share: float | None
    """Live part of the KV pool, 0 to 1."""
    os_swap: float | None
    """Bytes per second, in and out."""
    preempted: int
    """Preemptions since the sample before."""
    slots: dict[int, Mark]
    """Slots that were held."""


@dataclass(frozen=True, eq=False)
class Trace:
    """Oldest first."""

    seconds: tuple[Second, ...] = ()
    changes: tuple[tuple[float, str], ...] = ()
    """Wall clock and words of each setting that changed: ``slots 4→8``."""


class Tracer:
    """Takes every frame; :attr:`trace` is another one once a second."""

    def __init__(self) -> None:
        self.trace = Trace()
        self._seconds: deque[Second] = deque(maxlen=SECONDS)
        self._changes: deque[tuple[float, str]] = deque(maxlen=SECONDS)
        self._marks: dict[int, Mark] = {}
        self._preemptions: int | None = None
        self._limits: LimitInfo | None = None

    def restart(self) -> None:
        """Another engine: its counters and settings begin anew, what was drawn stays."""
        self._preemptions = self._limits = None

    def add(self, frame: Frame) -> None:
        """Take a frame."""
        self._see_limits(frame)
        for slot in frame.slots:
            before = self._marks.get(slot.slot)
            if slot.state != "idle" and (before is None or _LOUDNESS[before.state] <= _LOUDNESS[slot.state]):
                self._marks[slot.slot] = Mark(slot.state, slot.request_id, slot.user)
        last = self._seconds[-1].time if self._seconds else None
        if last is not None and 0 <= frame.time - last < 1:
            return
        if last is not None and frame.time < last:  # the clock was set back, or a recording begins again
            self._seconds.clear()
        self._seconds.append(self._second(frame))
        self._marks = {}
        self.trace = Trace(tuple(self._seconds), tuple(self._changes))

    def fill(self, frames: Iterable[Frame]) -> None:
        """Take frames of before, oldest first, where nothing was seen."""
        other = Tracer()
        for frame in frames:
            other.add(frame)
        told = other.trace
        if not told.seconds:
            return
        seen = [second.time for second in self._seconds]
        missed = [second for second in told.seconds if not _near(seen, second.time)]
        first, last = told.seconds[0].time, told.seconds[-1].time
        if len(seen) > 1 and seen[-1] - seen[-2] >= MAX_HOLE:
            last = seen[-1]  # what this one made of a hole is told better
        changes = [change for change in self._changes if not first <= change[0] <= last]
        changes += told.changes
        self._seconds = deque(sorted([*self._seconds, *missed], key=lambda second: second.time), maxlen=SECONDS)
        self._changes = deque(sorted(changes, key=lambda change: change[0]), maxlen=SECONDS)
        self.trace = Trace(tuple(self._seconds), tuple(self._changes))

    def _see_limits(self, frame: Frame) -> None:
        before, self._limits = self._limits, frame.limits
        if before is None or before.revision == frame.limits.revision:
            return
        changed = changed_settings(before, frame.limits)
        self._changes.extend((frame.time, text) for text in changed)

    def _second(self, frame: Frame) -> Second:
        pool, host, total = frame.pool, frame.host, frame.counters.preemptions
        preempted = 0 if total is None or self._preemptions is None else max(0, total - self._preemptions)
        self._preemptions = total
        swaps = [value for value in (host.os_swap_in, host.os_swap_out) if value is not None]
        return Second(
            time=frame.time,
            ttft_p95=frame.minute.ttft_p95,
            itl_p95=frame.minute.itl_p95,
            generated=frame.generated_per_second,
            prompt=frame.prompt_per_second,
            pool_share=pool.live / pool.total if pool.live is not None and pool.total else None,
            os_swap=sum(swaps) if swaps else None,
            preempted=preempted,
            slots=self._marks,
        )


def _near(times: list[float], time: float) -> bool:
    """True if one of the sorted ``times`` is less than a second away."""
    place = bisect_left(times, time)
    return any(abs(known - time) < 1 for known in times[max(0, place - 1) : place + 1])


def changed_settings(before: LimitInfo, after: LimitInfo) -> list[str]:
    """What changed between two settings in force, in words."""
    found = []
    for name in LIVE_SETTINGS:
        old, new = getattr(before, name, None), getattr(after, name, None)
        if name == "mode":  # a mode that was asked for counts, also while what runs under the old one drains
            old, new = before.next_mode or old, after.next_mode or new
        if old != new:
            found.append(describe_change(name, old, new))
    return found
