"""What the parts of the loop share: the scheduler with its lock, and how the loop is doing."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from slotdeck.engine.core.events import Event
from slotdeck.engine.core.request import Request
from slotdeck.engine.core.scheduler import Scheduler
from slotdeck.engine.loop.outputs import Deliver, Output, end_of
from slotdeck.engine.telemetry.frame import EngineInfo
from slotdeck.engine.telemetry.telemetry import Telemetry

LOCK_TIMEOUT = 1.0
"""Seconds to wait for the lock where the engine may hang while it holds it."""


@dataclass(slots=True)
class Turn:
    """The turn of the loop that runs now."""

    started: float
    """Monotonic seconds; moved forward when a long part of a turn makes progress."""
    phase: str
    """What the loop does, as in "the engine loop is computing"."""


class LoopState:
    """Whoever reads or changes ``scheduler`` holds ``lock``. The other fields may be read without it.

    The lock is held for well under a millisecond at a time: no step, no copy of KV, no hashing of prompts and no
    writing of logs happens under it.
    """

    def __init__(
        self,
        *,
        scheduler: Scheduler,
        telemetry: Telemetry,
        deliver: Deliver,
        clock: Callable[[], float],
        info: EngineInfo,
        step_timeout: float,
    ) -> None:
        self.scheduler, self.telemetry, self.deliver, self.clock = scheduler, telemetry, deliver, clock
        self.info = info
        self.step_timeout = step_timeout
        """Seconds after which a turn that makes no progress counts as wedged."""
        self.lock = threading.Lock()
        self.work = threading.Condition(self.lock)
        """Notified when an idle loop has something to do."""
        self._posted: deque[list[Output]] = deque()
        self._delivery = threading.Lock()
        self.stopping = threading.Event()
        self.draining = False
        self.fault: str | None = None
        """Why the engine has stopped for good."""
        self.abandoned = False
        """The thread did not end in time: whatever its step still computes is thrown away."""
        self.turn: Turn | None = None
        """``None`` while the loop waits for work."""

    @property
    def gave_up(self) -> bool:
        """Whether the clients of the step that runs have been told its end already."""
        return self.abandoned or self.fault is not None

    def enter(self, phase: str) -> None:
        """The turn goes on with ``phase``."""
        if self.turn is not None:
            self.turn.phase = phase

    def progress(self) -> None:
        """A long part of the turn advances: its time limit starts anew."""
        if self.turn is not None:
            self.turn.started = self.clock()

    def wedged(self) -> str | None:
        """Why the engine counts as wedged; ``None`` while its turns make progress."""
        turn = self.turn
        stuck = 0.0 if turn is None else self.clock() - turn.started
        if turn is None or stuck <= self.step_timeout:
            return None
        return f"a step has not returned for {self.step_timeout:.0f} s: the engine loop is {turn.phase}"

    def post(self, outputs: list[Output]) -> None:
        """Outputs for :meth:`deliver_posted`. The caller holds the lock, so their order is that of the scheduler."""
        self._posted.append(outputs)

    def post_ends(self, events: Iterable[Event]) -> None:
        """Post the ends of requests that ended outside a step. The caller holds the lock."""
        outputs = [end for event in events if (end := end_of(event)) is not None]
        if outputs:
            self.post(outputs)

    def deliver_posted(self) -> None:
        """Deliver what was posted, in that order, so that no client gets tokens after its end.

        Called without the lock.
        """
        locked = self._delivery.acquire(timeout=LOCK_TIMEOUT)  # a delivery that hangs may hold it for ever
        try:
            while self._posted:
                try:
                    outputs = self._posted.popleft()
                except IndexError:  # another thread delivers it
                    return
                self.deliver(outputs)
        finally:
            if locked:
                self._delivery.release()

    def fail(self, requests: Iterable[Request], reason: str) -> list[Event]:
        """End ``requests`` by a fault of ours. The caller holds the lock."""
        events: list[Event] = []
        for request in requests:
            events += self.scheduler.fail(request.id, reason, self.clock())
        self.telemetry.observe(events)
        return events

    def tell_everybody(self, reason: str, error: str) -> None:
        """An engine fault: logged as an event, and the end for the clients of everybody in flight."""
        self.telemetry.log("engine_fault", reason)
        # A turn that hangs may hold the lock for ever. Then nothing else changes the scheduler either.
        locked = self.lock.acquire(timeout=LOCK_TIMEOUT)
        try:
            request_ids = [request.id for request in self.scheduler.requests()]
        finally:
            if locked:
                self.lock.release()
        self.deliver([Output(request_id, [], self.clock(), error=error) for request_id in request_ids])
