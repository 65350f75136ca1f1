"""The last ten minutes as one sample a second, for the plots and the slot timeline.

A :class:`TimeSeries` is immutable and equals only itself, so what was drawn from it can be kept until the next one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from slotdeck.console.settings.values import LIVE_SETTINGS, describe_change
from slotdeck.engine.telemetry.frame import Frame, LimitInfo, SlotState

SECONDS = 600
"""Samples that are kept."""

MAX_HOLE = 2.0
"""Longest time in seconds between two frames of one connection."""

_PRIORITY: dict[SlotState, int] = {"idle": 0, "decode": 1, "held": 2, "prefill": 3, "swapped": 4, "preempted": 5}
"""If a slot had several states within a second, the one with the highest priority is kept."""


@dataclass(frozen=True, slots=True)
class SlotSample:
    """The request that held a slot in one second, and its state."""

    state: SlotState
    request_id: str | None
    user: str | None


@dataclass(frozen=True, slots=True)
class Sample:
    """One second; ``None`` is unknown. Latencies are in seconds over the last 60 s, rates per second over 5 s."""

    time: float
    """Wall clock."""
    ttft_p95: float | None
    itl_p95: float | None
    generated: float | None
    """Generated tokens per second."""
    prompt: float | None
    """Prompt tokens per second."""
    pool_share: float | None
    """Live part of the KV pool, 0 to 1."""
    os_swap: float | None
    """Bytes per second, in and out together."""
    preempted: int
    """Preemptions since the previous sample."""
    slots: dict[int, SlotSample]
    """The slots that were held, by number."""


@dataclass(frozen=True, eq=False)
class TimeSeries:
    """Samples and changes of settings, oldest first."""

    samples: tuple[Sample, ...] = ()
    changes: tuple[tuple[float, str], ...] = ()
    """Wall clock and description of each changed setting: ``slots 4→8``."""


class TimeSeriesBuilder:
    """Takes every frame. :attr:`series` is replaced once a second."""

    def __init__(self) -> None:
        self.series = TimeSeries()
        self._samples: deque[Sample] = deque(maxlen=SECONDS)
        self._changes: deque[tuple[float, str]] = deque(maxlen=SECONDS)
        self._slots: dict[int, SlotSample] = {}
        """The slots of the second that is being collected."""
        self._preemptions: int | None = None
        self._limits: LimitInfo | None = None

    def restart(self) -> None:
        """Another engine sends the frames now: its counters and settings begin anew. Earlier samples are kept."""
        self._preemptions = self._limits = None

    def add(self, frame: Frame) -> None:
        """Take a frame."""
        self._add_changes(frame)
        for slot in frame.slots:
            before = self._slots.get(slot.slot)
            if slot.state != "idle" and (before is None or _PRIORITY[before.state] <= _PRIORITY[slot.state]):
                self._slots[slot.slot] = SlotSample(slot.state, slot.request_id, slot.user)
        last = self._samples[-1].time if self._samples else None
        if last is not None and 0 <= frame.time - last < 1:
            return
        if last is not None and frame.time < last:  # the clock was set back, or a recording starts again
            self._samples.clear()
        self._samples.append(self._sample(frame))
        self._slots = {}
        self._publish()

    def fill(self, frames: Iterable[Frame]) -> None:
        """Add frames from the past, oldest first, for the seconds in which no frame was seen."""
        other = TimeSeriesBuilder()
        for frame in frames:
            other.add(frame)
        past = other.series
        if not past.samples:
            return
        seen = [sample.time for sample in self._samples]
        missed = [sample for sample in past.samples if not _near(seen, sample.time)]
        first, last = past.samples[0].time, past.samples[-1].time
        if len(seen) > 1 and seen[-1] - seen[-2] >= MAX_HOLE:
            last = seen[-1]  # changes seen only at the end of a hole are known more exactly from the past
        changes = [change for change in self._changes if not first <= change[0] <= last]
        changes += past.changes
        self._samples = deque(sorted([*self._samples, *missed], key=lambda sample: sample.time), maxlen=SECONDS)
        self._changes = deque(sorted(changes, key=lambda change: change[0]), maxlen=SECONDS)
        self._publish()

    def _publish(self) -> None:
        self.series = TimeSeries(tuple(self._samples), tuple(self._changes))

    def _add_changes(self, frame: Frame) -> None:
        before, self._limits = self._limits, frame.limits
        if before is not None and before.revision != frame.limits.revision:
            self._changes.extend((frame.time, text) for text in changed_settings(before, frame.limits))

    def _sample(self, frame: Frame) -> Sample:
        pool, host, total = frame.pool, frame.host, frame.counters.preemptions
        preempted = 0 if total is None or self._preemptions is None else max(0, total - self._preemptions)
        self._preemptions = total
        swaps = [value for value in (host.os_swap_in, host.os_swap_out) if value is not None]
        return Sample(
            time=frame.time,
            ttft_p95=frame.minute.ttft_p95,
            itl_p95=frame.minute.itl_p95,
            generated=frame.generated_per_second,
            prompt=frame.prompt_per_second,
            pool_share=pool.live / pool.total if pool.live is not None and pool.total else None,
            os_swap=sum(swaps) if swaps else None,
            preempted=preempted,
            slots=self._slots,
        )


def _near(times: list[float], time: float) -> bool:
    """True if one of the sorted ``times`` is less than a second away."""
    place = bisect_left(times, time)
    return any(abs(known - time) < 1 for known in times[max(0, place - 1) : place + 1])


def changed_settings(before: LimitInfo, after: LimitInfo) -> list[str]:
    """Descriptions of what changed between two states of the settings."""
    found = []
    for name in LIVE_SETTINGS:
        old, new = getattr(before, name, None), getattr(after, name, None)
        if name == "mode":  # a requested mode counts at once, also while requests of the old one drain
            old, new = before.next_mode or old, after.next_mode or new
        if old != new:
            found.append(describe_change(name, old, new))
    return found
