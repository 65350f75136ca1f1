"""A run of frames as a whole: totals, the requests that were seen, and how often a condition held."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from slotdeck.engine.settings import LiveSettings
from slotdeck.engine.telemetry.frame import Frame, SlotInfo, WindowInfo

LONG_WINDOW = 120.0
"""Seconds of frames from which the percentiles over 10 minutes are read instead of those over 60 s."""
TEN_MINUTES = 590.0
"""Seconds after a change of settings from which the percentiles over 10 minutes contain nothing from before it."""
SETTLED = 60.0
"""Seconds after which a change of settings can be judged. Until then the percentiles include the time before it."""
QUIET = 60.0
"""Seconds without any request, after which the next request may meet a cold start."""
MAX_HOLE = 10.0
"""Seconds that one frame counts for at most if the next one is missing or late."""


@dataclass(frozen=True)
class SeenRequest:
    """One request as its last frame showed it. ``after_quiet``: nothing was served in the minute before it."""

    slot: SlotInfo
    after_quiet: bool


class Window:
    """Frames under one set of settings, in order of time, at least one: see :func:`settled_frames`.

    The numbers belong to the last boot among the frames; :attr:`boots` counts all boots. :attr:`newest` is the last
    frame that was given, even if the settings changed before it.
    """

    def __init__(self, frames: Sequence[Frame], engine_gone: bool = False) -> None:
        """``engine_gone``: the engine of the last frame has ended. Raises ValueError without frames."""
        if not frames:
            raise ValueError("a window needs at least one frame")
        self.boots = len({frame.boot_id for frame in frames})
        self.final_frames = [frame for frame, after in pairwise(frames) if frame.boot_id != after.boot_id]
        """The last frame of each engine that has ended."""
        if engine_gone:
            self.final_frames.append(frames[-1])
        self.newest = frames[-1]
        self.whole_seconds = max(0.0, frames[-1].time - frames[0].time)
        same_boot = [frame for frame in frames if frame.boot_id == frames[-1].boot_id]
        self.frames = settled_frames(same_boot)
        self._from_start = self.boots > 1 and self.frames[0] is same_boot[0]
        self._from_change = self.frames[0] is not same_boot[0]
        self.first, self.last = self.frames[0], self.frames[-1]
        self.seconds = max(0.0, self.last.time - self.first.time)
        self.requests = _requests(self.frames)

    @property
    def latency(self) -> WindowInfo:
        """Percentiles as of the last frame, over roughly the time that the frames cover."""
        enough = TEN_MINUTES if self._from_change else LONG_WINDOW
        return self.last.ten_minutes if self.seconds >= enough else self.last.minute

    def increase(self, counter: str) -> int:
        """By how much a counter increased; 0 if it is unknown.

        If the engine started within the window, this is the increase since its start.
        """
        return int(self.increase_seconds(counter))

    def increase_seconds(self, counter: str) -> float:
        """As :meth:`increase`, for a counter of seconds."""
        after = getattr(self.last.counters, counter)
        before = 0 if self._from_start else getattr(self.first.counters, counter)
        return 0.0 if after is None else float(after - (before or 0))

    def share(self, holds: Callable[[Frame], bool]) -> float:
        """The part of the frames for which a condition holds, 0 to 1."""
        return sum(map(holds, self.frames)) / len(self.frames)

    def person_seconds(self, people: Callable[[Frame], float]) -> float:
        """A number of people, summed over time: two people who wait for 3 s give 6."""
        return sum(
            people(frame) * min(max(0.0, after.time - frame.time), MAX_HOLE) for frame, after in pairwise(self.frames)
        )

    def mean(self, value: Callable[[Frame], float | None]) -> float | None:
        """Over the frames in which the value is known; ``None`` if it is never known."""
        known = [number for frame in self.frames if (number := value(frame)) is not None]
        return sum(known) / len(known) if known else None

    def max_of(self, value: Callable[[Frame], float | None]) -> float | None:
        """Over the frames in which the value is known; ``None`` if it is never known."""
        return max((number for frame in self.frames if (number := value(frame)) is not None), default=None)

    @property
    def max_pool_usage(self) -> float | None:
        """The largest part of the KV pool that was live, 0 to 1."""
        return self.max_of(
            lambda frame: (
                frame.pool.live / frame.pool.total if frame.pool.live is not None and frame.pool.total else None
            )
        )

    @property
    def request_size(self) -> int | None:
        """Tokens of the pool that were enough for three quarters of the requests; ``None`` if no request was seen."""
        block = self.last.pool.block_size or 1
        sizes = sorted(seen.slot.blocks * block for seen in self.requests if seen.slot.blocks)
        return sizes[len(sizes) * 3 // 4] if sizes else None

    def fits_memory(self, kv_tokens: int) -> bool | None:
        """Whether a pool of ``kv_tokens`` fits beside everything else in memory; ``None`` if that is unknown."""
        pool, host = self.newest.pool, self.newest.host
        on_gpu = (self.newest.engine.device or "").startswith("cuda")
        total, used = (host.gpu_memory_total, host.gpu_memory_used) if on_gpu else (host.memory_total, host.memory_used)
        if not pool.bytes_per_token or pool.total is None or total is None or used is None:
            return None
        more = (kv_tokens - pool.total) * (pool.bytes_per_token + (pool.scale_bytes_per_token or 0))
        return more <= 0.8 * (total - used)


def settled_frames(frames: Sequence[Frame]) -> list[Frame]:
    """The newest frames that had the same settings for long enough to be judged.

    ``frames`` belong to one boot, at least one. These are the frames since the newest change, once it has settled.
    Before that they are the newest earlier part that lasted long enough, or the longest one if none did.
    """
    *earlier, newest = _parts(frames)
    if not earlier or _seconds(newest) >= SETTLED:
        return newest
    settled = [part for part in earlier if _seconds(part) >= SETTLED]
    return settled[-1] if settled else max(earlier, key=_seconds)


def seconds_since_change(frames: Sequence[Frame]) -> float | None:
    """Seconds since the newest change of settings if it is too recent to be judged, else ``None``."""
    parts = _parts([frame for frame in frames if frame.boot_id == frames[-1].boot_id])
    since = _seconds(parts[-1])
    return since if len(parts) > 1 and since < SETTLED else None


def _seconds(part: Sequence[Frame]) -> float:
    return part[-1].time - part[0].time


def _parts(frames: Sequence[Frame]) -> list[list[Frame]]:
    """The frames, split wherever a setting changed."""
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
    """How many slots hold a request, preempted ones included."""
    return sum(slot.state != "idle" for slot in frame.slots) if frame.slots else frame.running or 0


def in_state(*states: str) -> Callable[[Frame], int]:
    """A function that counts the slots of a frame that are in one of these states."""
    return lambda frame: sum(slot.state in states for slot in frame.slots)


def _requests(frames: Sequence[Frame]) -> list[SeenRequest]:
    """Every request that held a slot in some frame, in order of appearance.

    A request that came and went between two frames is missing, so these are a sample.
    """
    seen: dict[str, SeenRequest] = {}
    busy_until = None
    for frame in frames:
        for slot in frame.slots:
            if slot.request_id is None:
                continue
            known = seen.get(slot.request_id)
            arrived = frame.time - (slot.age or 0.0)
            quiet = busy_until is not None and arrived - busy_until >= QUIET
            seen[slot.request_id] = SeenRequest(slot, known.after_quiet if known else quiet)
        if occupied(frame) or frame is frames[0]:
            busy_until = frame.time
    return list(seen.values())
