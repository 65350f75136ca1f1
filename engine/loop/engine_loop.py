"""The engine as the server sees it: submit, cancel and finish requests, change settings, read frames, stop."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

from slotdeck.engine.core.block_pool import BlockPool
from slotdeck.engine.core.events import Event, QueueFullError
from slotdeck.engine.core.request import Request
from slotdeck.engine.core.scheduler import Scheduler
from slotdeck.engine.loop.changes import STOPPED, ChangeQueue, PendingChange
from slotdeck.engine.loop.live_changes import LiveChanges
from slotdeck.engine.loop.outputs import Deliver, Output
from slotdeck.engine.loop.read_model import ReadModel
from slotdeck.engine.loop.state import LOCK_TIMEOUT, LoopState
from slotdeck.engine.loop.step_loop import StepLoop
from slotdeck.engine.loop.step_runner import StepRunner
from slotdeck.engine.loop.watchdog import Watchdog
from slotdeck.engine.settings import LiveSettings, SettingsError
from slotdeck.engine.telemetry.frame import EngineInfo, Frame, Health, LimitInfo
from slotdeck.engine.telemetry.step_profile import Profile, StepProfiler
from slotdeck.engine.telemetry.telemetry import Telemetry

CHANGE_TIMEOUT = 120.0
"""Seconds that a caller waits for a change of the pool's size unless it says otherwise."""


class EngineUnavailableError(RuntimeError):
    """The engine takes no new requests: it drains, or a fault stopped it. The message says which."""


class EngineLoop:
    """Owns the scheduler and the runner. Any thread may call any method, and each returns at once, however long the
    step that runs meanwhile; ``change`` and ``stop`` say what they wait for.

    ``num_blocks`` is the size of the runner's pool, in which one token takes ``bytes_per_token`` and its scales
    ``scale_bytes_per_token``. ``deliver`` gets each step's outputs in one call, in the loop's thread.
    ``on_wedged`` is called once, from the watchdog's thread, when a step exceeds ``step_timeout`` seconds. ``clock`` is
    monotonic, ``wall`` the time of day, both in seconds.
    """

    def __init__(
        self,
        runner: StepRunner,
        settings: LiveSettings,
        num_blocks: int,
        deliver: Deliver,
        info: EngineInfo | None = None,
        *,
        bytes_per_token: int = 0,
        scale_bytes_per_token: int = 0,
        step_timeout: float = 30.0,
        on_wedged: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.boot_id = uuid.uuid4().hex
        self.telemetry = Telemetry(clock, wall)
        self.clock = clock
        self._runner, self._on_wedged = runner, on_wedged
        scheduler = Scheduler(settings, BlockPool(num_blocks), runner.block_bytes)
        self._state = LoopState(
            scheduler=scheduler,
            telemetry=self.telemetry,
            deliver=deliver,
            clock=clock,
            info=info or EngineInfo(),
            step_timeout=step_timeout,
        )
        self._live = LiveChanges(self._state)
        self._changes = ChangeQueue()
        self._profiler = StepProfiler()
        self._steps = StepLoop(self._state, self._live, runner, self._changes, self._profiler)
        token_bytes = (bytes_per_token, scale_bytes_per_token)
        self._read = ReadModel(self._state, self._live, self._steps.thread, self.boot_id, token_bytes)

    # -- life ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread that computes steps, and the watchdog."""
        self._steps.thread.start()
        Watchdog(self._state).watch(self._wedged)

    def drain(self) -> None:
        """Refuse new requests and those that wait. Requests that run go on, and so do the other choices of a call
        whose prompt is being computed. Cannot be undone.
        """
        state, scheduler = self._state, self._state.scheduler
        with state.lock:
            if state.draining:
                return
            state.draining = True
            self.telemetry.log("draining", f"draining: {len(scheduler.admitted())} requests run to their end")
            now = state.clock()
            events = [
                event
                for request in list(scheduler.waiting)
                if request.parent is None or request.parent.timeline.scheduled is None
                for event in scheduler.refuse(request.id, "the server is shutting down, try again later", now)
            ]
            self.telemetry.observe(events)
            state.post_ends(events)
        state.deliver_posted()

    def stop(self, reason: str = "the server was stopped") -> None:
        """End the thread and fail whatever is left. Waits for the step that runs, at most ``step_timeout`` seconds.

        When that step does not end in time, its clients are told all the same, and its result is thrown away.
        """
        state, thread = self._state, self._steps.thread
        state.stopping.set()
        self._wake()
        if thread.is_alive() and threading.current_thread() is not thread:
            thread.join(timeout=state.step_timeout)
        state.abandoned = thread.is_alive()
        if not state.lock.acquire(timeout=LOCK_TIMEOUT):
            state.tell_everybody(reason, reason)  # the thread hangs and holds the lock
            return
        try:
            left = list(state.scheduler.requests())
            computed = [request for request in left if state.scheduler.computes(request.id)]
            state.post_ends(state.fail([request for request in left if request not in computed], reason))
        finally:
            state.lock.release()
        state.deliver_posted()
        if computed:  # they belong to a step that never came back: the scheduler keeps them
            state.deliver([Output(request.id, [], state.clock(), error=reason) for request in computed])

    # -- requests --------------------------------------------------------------------------------------------

    def submit(self, *requests: Request) -> None:
        """Queue a request, or several choices for one prompt (all or none; the first one computes the prompt).

        Raises QueueFullError, RequestTooLargeError or EngineUnavailableError at once.
        """
        state = self._state
        with state.lock:
            if state.fault is not None:
                raise EngineUnavailableError(f"the engine has stopped: {state.fault}")
            if state.draining or state.stopping.is_set():
                raise EngineUnavailableError("the server is shutting down, try again later")
            try:
                state.scheduler.add(*requests)
            except QueueFullError as error:
                self.telemetry.count_rejected(requests[0].user, str(error), len(requests))
                raise
            state.work.notify_all()

    def cache_salt(self, user: str) -> str | None:
        """The salt for the block hashes of a prompt of ``user``; ``None`` while no prefixes are cached."""
        scheduler = self._state.scheduler
        return scheduler.cache_salt(user) if scheduler.settings.prefix_cache else None

    def cancel(self, request_id: str) -> bool:
        """End a request in any state; True if it was alive. A request in the running step ends with that step."""
        with self._state.lock:
            alive = request_id in self._state.scheduler
            self._state.post_ends(self._observed(self._state.scheduler.cancel(request_id, self.clock())))
        self._state.deliver_posted()
        return alive

    def finish(self, request_id: str, num_output_tokens: int) -> None:
        """A stop string matched: the request ends as ``stop`` after that many output tokens."""
        with self._state.lock:
            events = self._observed(self._state.scheduler.finish(request_id, num_output_tokens, self.clock()))
            self._state.post_ends(events)
        self._state.deliver_posted()

    @property
    def num_in_flight(self) -> int:
        with self._state.lock:
            return self._state.scheduler.num_in_flight

    # -- settings --------------------------------------------------------------------------------------------

    @property
    def revision(self) -> int:
        """Rises by one with each applied change."""
        return self._live.revision

    @property
    def limits(self) -> LiveSettings:
        """The settings in force."""
        return self._state.scheduler.settings

    @property
    def pool_tokens(self) -> int:
        """Tokens that the KV pool can hold."""
        return self._state.scheduler.pool.num_tokens

    def change(
        self, changes: dict[str, Any], *, revision: int | None, source: str, timeout: float = CHANGE_TIMEOUT
    ) -> LimitInfo:
        """Apply all of ``changes`` or none. ``revision`` is the one they were decided on, ``None`` for any.

        Waits for a change of the pool's size. One that was not applied within ``timeout`` seconds is withdrawn: it will
        not be applied later. Raises SettingsError with reason and limit, and RevisionConflictError when ``revision`` is
        not in force; nothing was changed then.
        """
        return self.begin_change(changes, revision=revision, source=source).wait(timeout)

    def begin_change(self, changes: dict[str, Any], *, revision: int | None, source: str) -> PendingChange:
        """Like :meth:`change`, without waiting: the caller waits for the outcome or withdraws the change."""
        pending = PendingChange(changes, revision, source)
        if self._state.fault is not None or self._state.stopping.is_set():
            pending.refuse(SettingsError(STOPPED))
        elif "kv_tokens" in changes:
            self._changes.put(pending)
            if self._steps.thread.ident is None:
                self._steps.resize_now()
            with self._state.lock:
                self._state.work.notify_all()
        else:
            self._apply(pending)
        return pending

    def _apply(self, pending: PendingChange) -> None:
        try:
            with self._state.lock:
                checked = self._live.check(pending.changes, pending.revision, pending.source)
                self._observed(self._live.apply(checked))
                limits = self._live.limits()
        except Exception as error:
            pending.refuse(error)
        else:
            pending.outcome.set_result(limits)

    # -- what it tells ---------------------------------------------------------------------------------------

    @property
    def info(self) -> EngineInfo:
        """What serves: model, device, kernels, notes."""
        return self._state.info

    @info.setter
    def info(self, info: EngineInfo) -> None:
        self._state.info = info

    def health(self) -> tuple[Health, str | None]:
        """How the engine is, with the reason."""
        return self._read.health()

    def frame(self, sequence: int, event_cursor: int) -> tuple[Frame, int]:
        """The state of the engine now, with the events after ``event_cursor``; and the new cursor."""
        return self._read.frame(sequence, event_cursor)

    def estimated_wait(self) -> float | None:
        """Seconds until a request that came now would likely get a slot; ``None`` before anything has finished."""
        return self._read.estimated_wait()

    def profile(self) -> Profile:
        """Where the time of all steps so far went. Called in the thread that speaks HTTP."""
        return self._profiler.profile(self._runner.part_seconds())

    def metrics_text(self) -> bytes:
        """The ``/metrics`` page."""
        return self.telemetry.metrics.text(self.frame(0, self.telemetry.event_cursor)[0])

    # ----------------------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        """Wake an idle loop. A loop that is not idle may hold the lock; it looks by itself."""
        if self._state.lock.acquire(timeout=LOCK_TIMEOUT):
            self._state.work.notify_all()
            self._state.lock.release()

    def _observed(self, events: list[Event]) -> list[Event]:
        """Count events and wake the loop. The caller holds the lock."""
        self.telemetry.observe(events)
        self._state.work.notify_all()
        return events

    def _wedged(self, reason: str) -> None:
        self._state.fault = reason
        self._state.tell_everybody(reason, "the engine has stopped responding")
        if self._on_wedged is not None:
            self._on_wedged(reason)
