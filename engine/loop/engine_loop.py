"""The engine loop: one thread that plans, runs and commits steps, and contains their faults.

Every public method may be called from any thread. A lock guards the scheduler; the loop holds it while it plans and
commits (well under a millisecond) and never while a step runs, so that refusals, cancellations, settings and frames
are answered at once, however long the step.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from slotdeck.engine.core.block_pool import BlockPool
from slotdeck.engine.core.events import Event, QueueFullError
from slotdeck.engine.core.request import Request
from slotdeck.engine.core.scheduler import Scheduler
from slotdeck.engine.core.step import SchedulerOutput
from slotdeck.engine.loop.live_changes import LiveChanges
from slotdeck.engine.loop.outputs import Deliver, Output, end_of, outputs_of
from slotdeck.engine.loop.step_runner import StepRunner
from slotdeck.engine.loop.watchdog import Watchdog
from slotdeck.engine.settings import LiveSettings, SettingsError
from slotdeck.engine.telemetry.frame import EngineInfo, Frame, Health, LimitInfo
from slotdeck.engine.telemetry.frame_builder import build_frame, estimates, take_snapshot
from slotdeck.engine.telemetry.host import HostProbe
from slotdeck.engine.telemetry.step_profile import Profile, StepProfiler
from slotdeck.engine.telemetry.telemetry import Telemetry

log = logging.getLogger("slotdeck.engine")

FAULTS_UNTIL_STOP = 3


class EngineUnavailableError(RuntimeError):
    """The engine takes no new requests: it drains, or a fault stopped it. The message says which."""


@dataclass
class EngineLoop:
    """Owns the scheduler and the runner. ``deliver`` gets each step's outputs in one call, in the loop's thread.

    ``on_wedged`` is called once, from the watchdog's thread, when a step exceeds ``step_timeout`` seconds.
    """

    runner: StepRunner
    settings: LiveSettings
    num_blocks: int
    deliver: Deliver
    info: EngineInfo = field(default_factory=EngineInfo)
    bytes_per_token: int = 0
    scale_bytes_per_token: int = 0
    step_timeout: float = 30.0
    on_wedged: Callable[[str], None] | None = None
    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        self.telemetry = Telemetry(self.clock, self.wall)
        self.times = StepProfiler()
        self.boot_id = uuid.uuid4().hex
        self._scheduler = Scheduler(self.settings, BlockPool(self.num_blocks), self.runner.block_bytes)
        self._live = LiveChanges(self._scheduler, self.runner, self.info, self.telemetry, self.clock)
        self._commands: list[tuple[Callable[[], None], Future[None]]] = []
        self._host = HostProbe(self.info.device or "cpu")
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._step_started: float | None = None
        self._faults_in_a_row = 0
        self._fault: str | None = None
        self._draining = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="engine-loop", daemon=True)
        self._watchdog = Watchdog(lambda: self._step_started, self.clock, self._stopping)

    # -- life ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()
        self._watchdog.watch(self.step_timeout, self._wedged)

    def drain(self) -> None:
        """Refuse newcomers and what waits; those running go on, and answers to a prompt that is being answered.

        Irrevocable.
        """
        with self._lock:
            if self._draining:
                return
            self._draining = True
            self.telemetry.log("draining", f"draining: {len(self._scheduler.admitted())} requests run to their end")
            now = self.clock()
            events = [
                event
                for request in list(self._scheduler.waiting)
                if request.leader is None or request.leader.timeline.scheduled is None
                for event in self._scheduler.refuse(request.id, "the server is shutting down, try again later", now)
            ]
            self.telemetry.observe(events)
        self._hand_over(events)

    def stop(self, reason: str = "the server was stopped") -> None:
        """Fail whatever is left and end the thread. Returns when it has ended (a wedged step is not waited for)."""
        self._stopping.set()
        with self._lock:
            self._work.notify_all()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(timeout=self.step_timeout)
        with self._lock:
            events = self._fail(list(self._scheduler.requests()), reason)
        self._hand_over(events)

    # -- requests --------------------------------------------------------------------------------------------

    def submit(self, *requests: Request) -> None:
        """Queue a request, or several answers to one prompt (all or none; the first one computes the prompt).

        Raises QueueFullError, RequestTooLargeError or EngineUnavailableError at once.
        """
        with self._lock:
            if self._fault is not None:
                raise EngineUnavailableError(f"the engine has stopped: {self._fault}")
            if self._draining or self._stopping.is_set():
                raise EngineUnavailableError("the server is shutting down, try again later")
            try:
                self._scheduler.add(*requests)
            except QueueFullError as error:
                self.telemetry.count_rejected(requests[0].user, str(error), len(requests))
                raise
            self._work.notify_all()

    def cancel(self, request_id: str) -> bool:
        """End a request in any state; True if it was alive. What a step is computing ends with that step."""
        with self._lock:
            alive = request_id in self._scheduler
            events = self._scheduler.cancel(request_id, self.clock())
            self.telemetry.observe(events)
            self._work.notify_all()
        self._hand_over(events)
        return alive

    def finish(self, request_id: str, num_output_tokens: int) -> None:
        """A stop string matched: the request ends as ``stop`` after that many output tokens."""
        with self._lock:
            events = self._scheduler.finish(request_id, num_output_tokens, self.clock())
            self.telemetry.observe(events)
            self._work.notify_all()
        self._hand_over(events)

    @property
    def num_in_flight(self) -> int:
        with self._lock:
            return self._scheduler.num_in_flight

    # -- settings --------------------------------------------------------------------------------------------

    @property
    def revision(self) -> int:
        """Rises by one with each applied change."""
        return self._live.revision

    @property
    def limits(self) -> LiveSettings:
        return self._scheduler.settings

    @property
    def pool_tokens(self) -> int:
        return self._scheduler.pool.num_tokens

    def change(self, changes: dict[str, Any], *, revision: int | None, source: str) -> LimitInfo:
        """Apply all of ``changes`` or none, between two steps. ``revision``: the one they were decided on.

        Returns at once, but for a change of the pool's size, which waits for the step that runs. Raises SettingsError
        with reason and maximum, RevisionConflictError when ``revision`` is not in force.
        """
        if self._fault is not None or self._stopping.is_set():
            raise SettingsError("the engine has stopped, so nothing can be changed")
        if "kv_tokens" in changes and self._thread.is_alive():
            done: Future[None] = Future()
            limits: list[LimitInfo] = []
            with self._lock:
                self._commands.append((lambda: limits.append(self._change(changes, revision, source)), done))
                self._work.notify_all()
            done.result(timeout=self.step_timeout)
            return limits[0]
        return self._change(changes, revision, source)

    def _change(self, changes: dict[str, Any], revision: int | None, source: str) -> LimitInfo:
        with self._lock:
            self.telemetry.observe(self._live.apply(changes, revision, source))
            self._work.notify_all()
            return self._live.limits()

    # -- what it tells ---------------------------------------------------------------------------------------

    def health(self) -> tuple[Health, str | None]:
        """How it is, with the reason."""
        if self._fault is not None:
            return "fault", self._fault
        started = self._step_started
        if started is not None and self.clock() - started > self.step_timeout:
            return "fault", f"a step has not returned for {self.clock() - started:.0f} s"
        if self._draining:
            return "draining", "the engine is shutting down; running requests are served to their end"
        if not self._thread.is_alive():
            return ("fault", "the engine thread has ended") if self._thread.ident else ("starting", None)
        return "ok", None

    def frame(self, sequence: int, event_cursor: int) -> tuple[Frame, int]:
        """The whole picture now, with the events after ``event_cursor``; and the new cursor."""
        now = self.clock()
        health, reason = self.health()
        pace = self.telemetry.pace()
        with self._lock:
            seen = take_snapshot(self._scheduler, pace, (self.bytes_per_token, self.scale_bytes_per_token), now)
            limits = self._live.limits()
        host = self._host.sample(now)
        self.telemetry.requests.on_host(host)
        return build_frame(
            seen, self.telemetry, event_cursor, boot_id=self.boot_id, sequence=sequence, engine=self.info,
            limits=limits, host=host, health=health, health_reason=reason,
        )  # fmt: skip

    def estimated_wait(self) -> float | None:
        """Seconds until somebody who came now would likely get a slot; ``None`` before anything has finished."""
        pace = self.telemetry.pace()
        with self._lock:
            waits = estimates(self._scheduler, pace)
        return waits[-1] if waits else None

    def profile(self) -> Profile:
        """Where the time of all steps so far went. Called in the thread that speaks HTTP."""
        return self.times.profile(self.runner.part_seconds())

    def metrics_text(self) -> bytes:
        """The ``/metrics`` page."""
        return self.telemetry.metrics.text(self.frame(0, self.telemetry.event_cursor)[0])

    # -- the thread ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._serve_steps()
        except Exception as error:  # our own code failed: nothing here can be trusted any more, but everybody is told
            self._give_up(error)
        finally:
            with self._lock:
                commands, self._commands = self._commands, []
            for _, done in commands:
                done.set_exception(SettingsError("the engine has stopped, so nothing can be changed"))

    def _give_up(self, error: Exception) -> None:
        log.exception("the engine loop failed")
        self._fault = f"the engine loop failed with {type(error).__name__}: {error}"
        self._tell_everybody(self._fault, "the engine has stopped after a fault")

    def _serve_steps(self) -> None:
        while not self._stopping.is_set() and self._fault is None:
            with self._work:
                while not (self._scheduler.has_work or self._commands or self._stopping.is_set()):
                    self._work.wait()
                commands, self._commands = self._commands, []
            for command, done in commands:
                _execute(command, done)
            began = self.clock()
            with self._lock:
                if self._stopping.is_set():
                    return
                if not self._scheduler.has_work:
                    continue
                plan, events = self._scheduler.plan(self.clock())
                self.telemetry.observe(events)
            self._step(plan, began)

    def _step(self, plan: SchedulerOutput, began: float) -> None:
        self._step_started = started = self.clock()
        try:
            result = self.runner.run(plan)
        except Exception as error:  # whatever the model threw: this step's requests fail, the engine goes on
            self._contain(plan, error)
            return
        finally:
            self._step_started = None
        with self._lock:
            now = self.clock()
            before = {row.request.id: row.request.num_output_tokens for row in plan.rows if row.samples}
            events = self._scheduler.commit(plan, result, now)
            outputs = outputs_of(plan, result, before, events, now)
            generated = sum(len(output.token_ids) for output in outputs)
            self.telemetry.observe_step(plan, now - started, now, generated)
            self._scheduler.cost.observe(
                plan.num_decodes, plan.num_prefill_tokens, sum(row.start for row in plan.rows), now - started
            )
            self.telemetry.observe(events)
        self._faults_in_a_row = 0
        committed = self.clock()
        self.deliver(outputs)
        ended = self.clock()
        loop = {"plan": started - began, "commit": committed - now, "hand_over": ended - committed}
        self.times.add(ended - began, generated, loop | result.seconds)

    def _contain(self, plan: SchedulerOutput, error: Exception) -> None:
        self._faults_in_a_row += 1
        name = type(error).__name__
        log.exception("step %d failed: %s", self.telemetry.counters().steps, name)
        self.runner.forget_swapped()
        with self._lock:
            now = self.clock()
            events = self._scheduler.fail_step(plan, f"the engine failed in a step ({name}), try again", now)
            self.telemetry.log("engine_fault", f"a step failed: {name}: {error}")
            if self._faults_in_a_row >= FAULTS_UNTIL_STOP:
                self._fault = f"{FAULTS_UNTIL_STOP} steps in a row failed, the last with {name}: {error}"
                log.error("%s", self._fault)
                for request in list(self._scheduler.requests()):
                    events += self._scheduler.fail(request.id, "the engine has stopped after repeated faults", now)
            self.telemetry.observe(events)
        self._hand_over(events)

    def _hand_over(self, events: list[Event]) -> None:
        """Tell the clients of requests that ended outside a step."""
        outputs = [end for event in events if (end := end_of(event)) is not None]
        if outputs:
            self.deliver(outputs)

    def _fail(self, requests: list[Request], reason: str) -> list[Event]:
        events: list[Event] = []
        for request in requests:
            events += self._scheduler.fail(request.id, reason, self.clock())
        self.telemetry.observe(events)
        return events

    def _wedged(self, reason: str) -> None:
        self._fault = reason
        self._tell_everybody(reason, "the engine has stopped responding")
        if self.on_wedged is not None:
            self.on_wedged(reason)

    def _tell_everybody(self, reason: str, error: str) -> None:
        """An engine fault: logged as an event, and the end for whoever is in flight."""
        self.telemetry.log("engine_fault", reason)
        with self._lock:
            clients = [request.id for request in self._scheduler.requests()]
        now = self.clock()
        self.deliver([Output(client, [], now, error=error) for client in clients])


def _execute(command: Callable[[], None], done: Future[None]) -> None:
    try:
        command()
    except Exception as error:
        done.set_exception(error)
    else:
        done.set_result(None)
