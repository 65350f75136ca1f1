"""What a run of frames says as a whole: totals of a window, every request seen in it, and how often something held."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from slotdeck.engine.settings import LiveSettings
from slotdeck.engine.telemetry.frame import Frame, SlotInfo, WindowInfo

LONG_WINDOW = 120.0
"""Seconds from which the 10-minute percentiles are read instead of those of 60 s."""
TEN_MINUTES = 590.0
"""Seconds after a change of settings from which they hold nothing of before it."""
SETTLED = 60.0
"""Seconds after a change of settings before which it cannot be judged: the shorter percentiles still hold what was."""
QUIET = 60.0
"""Seconds without any request after which the next one is the first of its kind."""
MAX_HOLE = 10.0
"""Seconds for which a frame speaks at most, if none follows it."""


@dataclass(frozen=True)
class Seen:
    """One request as its last frame showed it. ``after_quiet``: nothing was served for a minute before it."""

    slot: SlotInfo
    after_quiet: bool


class Window:
    """Frames in order, at least one, under one set of settings: see :func:`judged`.

    Numbers are those of the last boot among them; :attr:`boots` counts the others. :attr:`newest` is the last frame
    given, whatever the settings.
    """

    def __init__(self, frames: Sequence[Frame], over: bool = False) -> None:
        """``over``: the engine of the last frame is no more, or at least wrote no frame after it."""
        if not frames:
            raise ValueError("a window needs at least one frame")
        self.boots = len({frame.boot_id for frame in frames})
        self.last_words = [frame for frame, after in pairwise(frames) if frame.boot_id != after.boot_id]
        """The last frame of each engine that is no more."""
        if over:
            self.last_words.append(frames[-1])
        self.newest = frames[-1]
        self.whole_seconds = max(0.0, frames[-1].time - frames[0].time)
        served = [frame for frame in frames if frame.boot_id == frames[-1].boot_id]
        self.frames = judged(served)
        self._from_start = self.boots > 1 and self.frames[0] is served[0]
        self._from_change = self.frames[0] is not served[0]
        self.first, self.last = self.frames[0], self.frames[-1]
        self.seconds = max(0.0, self.last.time - self.first.time)
        self.requests = _requests(self.frames)

    @property
    def latency(self) -> WindowInfo:
        """Percentiles over about the time that the frames cover, as of the last one."""
        enough = TEN_MINUTES if self._from_change else LONG_WINDOW
        return self.last.ten_minutes if self.seconds >= enough else self.last.minute

    def rose(self, counter: str) -> int:
        """By how much a counter rose; since the start if the engine started within the window; 0 if unknown."""
        return int(self.grew(counter))

    def grew(self, counter: str) -> float:
        """As :meth:`rose`, for a counter of seconds."""
        after = getattr(self.last.counters, counter)
        before = 0 if self._from_start else getattr(self.first.counters, counter)
        return 0.0 if after is None else float(after - (before or 0))

    def share(self, holds: Callable[[Frame], bool]) -> float:
        """Part of the frames for which something holds, 0 to 1."""
        return sum(map(holds, self.frames)) / len(self.frames)

    def seconds_of(self, number: Callable[[Frame], float]) -> float:
        """A number of people over time, as their seconds together: two who wait for 3 s are 6."""
        return sum(
            number(frame) * min(max(0.0, after.time - frame.time), MAX_HOLE) for frame, after in pairwise(self.frames)
        )

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

    @property
    def request_size(self) -> int | None:
        """Tokens of the pool that three in four of the requests seen took at most, while they were seen."""
        block = self.last.pool.block_size or 1
        sizes = sorted(seen.slot.blocks * block for seen in self.requests if seen.slot.blocks)
        return sizes[len(sizes) * 3 // 4] if sizes else None

    def fits_memory(self, kv_tokens: int) -> bool | None:
        """Whether a pool of that size fits beside what else is in memory; ``None`` if it cannot be told."""
        pool, host = self.newest.pool, self.newest.host
        on_gpu = (self.newest.engine.device or "").startswith("cuda")
        total, used = (host.gpu_memory_total, host.gpu_memory_used) if on_gpu else (host.memory_total, host.memory_used)
        if not pool.bytes_per_token or pool.total is None or total is None or used is None:
            return None
        more = (kv_tokens - pool.total) * (pool.bytes_per_token + (pool.scale_bytes_per_token or 0))
        return more <= 0.8 * (total - used)


def judged(frames: Sequence[Frame]) -> list[Frame]:
    """The newest of the frames that one set of settings explains; all of one boot, at least one.

    That is since the newest change if it has settled, else before it: the last part that was long enough, or else the
    longest.
    """
    *earlier, newest = _parts(frames)
    if not earlier or _seconds(newest) >= SETTLED:
        return newest
    settled = [part for part in earlier if _seconds(part) >= SETTLED]
    return settled[-1] if settled else max(earlier, key=_seconds)


def too_early(frames: Sequence[Frame]) -> float | None:
    """Seconds since the newest change of settings, while :func:`judged` still looks at what was before it."""
    parts = _parts([frame for frame in frames if frame.boot_id == frames[-1].boot_id])
    since = _seconds(parts[-1])
    return since if len(parts) > 1 and since < SETTLED else None


def _seconds(part: Sequence[Frame]) -> float:
    return part[-1].time - part[0].time


def _parts(frames: Sequence[Frame]) -> list[list[Frame]]:
    """The frames, cut wherever a setting changed."""
    parts: list[list[Frame]] = []
    before = None
    for frame in frames:
        settings = [getattr(frame.limits, name) for name in LiveSettings.model_fields]
        if settings != before:
            parts.append([])
        parts[-1].append(frame)
        before = settings
    return parts


def occupied(frame: Frame) -> int:
    """Slots that hold a request, preempted ones included."""
    return sum(slot.state != "idle" for slot in frame.slots) if frame.slots else frame.running or 0


def in_state(*states: str) -> Callable[[Frame], int]:
    """How many slots of a frame are in one of these states."""
    return lambda frame: sum(slot.state in states for slot in frame.slots)


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
