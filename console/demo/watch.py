"""Collects what the engine's frames show about one row: waits, slots, preemptions and tokens."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from slotdeck.engine.telemetry.frame import Frame


@dataclass
class Watch:
    """Gets every frame of a row. It only considers requests of ``users``, except for counters."""

    users: Collection[str]
    waits: dict[str, float] = field(default_factory=dict)
    """Queue wait of each request that was seen in a slot, as the engine measured it."""
    still_waiting: list[float] = field(default_factory=list)
    """Seconds that requests in the newest frame's queue have waited."""
    without_text: list[float] = field(default_factory=list)
    """Seconds since the arrival of requests without a first token in the newest frame, waiting or in a slot."""
    most_running: int = 0
    most_waiting: int = 0
    pool_peak: float | None = None
    """The largest live part of the pool, 0 to 1."""
    _first: Frame | None = None
    _last: Frame | None = None
    _held: int = 0
    _seen: int = 0

    def add(self, frame: Frame) -> None:
        """Add a frame."""
        if self._first is None:
            self._first = frame
        self._last = frame
        ours = [slot for slot in frame.slots if slot.request_id is not None and slot.user in self.users]
        for slot in ours:
            if slot.queue_wait is not None and slot.request_id is not None:
                self.waits[slot.request_id] = slot.queue_wait
        waiting = [entry for entry in frame.waiting if entry.user in self.users]
        self.still_waiting = [entry.waited for entry in waiting if entry.waited is not None]
        self.without_text = self.still_waiting + [
            slot.age for slot in ours if slot.ttft is None and slot.age is not None
        ]
        self.most_running = max(self.most_running, sum(slot.state in ("prefill", "decode") for slot in ours))
        self.most_waiting = max(self.most_waiting, len(waiting), frame.waiting_count or 0)
        self._seen += len(frame.slots)
        self._held += sum(slot.state == "held" for slot in ours)
        pool = frame.pool
        if pool.live is not None and pool.total:
            self.pool_peak = max(self.pool_peak or 0.0, pool.live / pool.total)

    @property
    def held_share(self) -> float:
        """The part of the slots' time in which finished answers held them, 0 to 1."""
        return self._held / self._seen if self._seen else 0.0

    @property
    def seconds(self) -> float | None:
        """Between the first and the newest frame."""
        return None if self._first is None or self._last is None else self._last.time - self._first.time

    @property
    def newest(self) -> Frame | None:
        return self._last

    def increase(self, name: str) -> float | None:
        """By how much a counter of the engine increased during the row; ``None`` if unknown."""
        if self._first is None or self._last is None:
            return None
        before, after = (getattr(counters, name) for counters in (self._first.counters, self._last.counters))
        return None if before is None or after is None else after - before
