"""What a run of frames says as a whole: totals of a window, every request seen in it, and how often something held."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from engine.telemetry.frame import Frame, SlotInfo, WindowInfo

LONG_WINDOW = 120.0
"""Seconds from which the 10-minute percentiles are read instead of those of 60 s."""
QUIET = 60.0
"""Seconds without any request after which the next one is the first of its kind."""


@dataclass(frozen=True)
class Seen:
    """One request as its last frame showed it. ``after_quiet``: nothing was served for a minute before it."""

    slot: SlotInfo
    after_quiet: bool


class Window:
    """Frames in order, at least one. Numbers are those of the last boot in it; :attr:`boots` counts the others."""

    def __init__(self, frames: Sequence[Frame]) -> None:
        if not frames:
            raise ValueError("a window needs at least one frame")
        self.boots = len({frame.boot_id for frame in frames})
        self.frames = [frame for frame in frames if frame.boot_id == frames[-1].boot_id]
        self.first, self.last = self.frames[0], self.frames[-1]
        self.whole_seconds = max(0.0, frames[-1].time - frames[0].time)
        self.seconds = max(0.0, self.last.time - self.first.time)
        self.requests = _requests(self.frames)

    @property
    def latency(self) -> WindowInfo:
        """Percentiles over about the time that the frames cover, as of the last one."""
        return self.last.ten_minutes if self.seconds >= LONG_WINDOW else self.last.minute

    def rose(self, counter: str) -> int:
        """By how much a counter rose; since the start if the engine started within the window; 0 if unknown."""
        after = getattr(self.last.counters, counter)
        before = 0 if self.boots > 1 else getattr(self.first.counters, counter)
        return 0 if after is None else after - (before or 0)

    def share(self, holds: Callable[[Frame], bool]) -> float:
        """Part of the frames for which something holds, 0 to 1."""
        return sum(map(holds, self.frames)) / len(self.frames)

    def mean(self, value: Callable[[Frame], float | None]) -> float | None:
        """Over the frames in which it is known; ``None`` if it never is."""
        known = [number for frame in self.frames if (number := value(frame)) is not None]
        return sum(known) / len(known) if known else None

    def highest(self, value: Callable[[Frame], float | None]) -> float | None:
        """Over the frames in which it is known; ``None`` if it never is."""
        return max((number for frame in self.frames if (number := value(frame)) is not None), default=None)

    def typical(self, value: Callable[[SlotInfo], float | None]) -> float | None:
        """The median over the requests of which it is known."""
        known = [number for seen in self.requests if (number := value(seen.slot)) is not None]
        return median(known) if known else None

    @property
    def fullest(self) -> float | None:
        """The largest live part of the KV pool, 0 to 1."""
        return self.highest(lambda f: f.pool.live / f.pool.total if f.pool.live is not None and f.pool.total else None)


def occupied(frame: Frame) -> int:
    """Slots that hold a request, preempted ones included."""
    return sum(slot.state != "idle" for slot in frame.slots) if frame.slots else frame.running or 0


def _requests(frames: Sequence[Frame]) -> list[Seen]:
    """Every request that held a slot in some frame, in order of appearance.

    One that came and went between two frames is not among them: what is said of single requests is a sample.
    """
    seen: dict[str, Seen] = {}
    busy_until = None
    for frame in frames:
        for slot in frame.slots:
            if slot.request_id is None:
                continue
            known = seen.get(slot.request_id)
            arrived = frame.time - (slot.age or 0.0)
            quiet = busy_until is not None and arrived - busy_until >= QUIET
            seen[slot.request_id] = Seen(slot, known.after_quiet if known else quiet)
        if occupied(frame) or frame is frames[0]:
            busy_until = frame.time
    return list(seen.values())
