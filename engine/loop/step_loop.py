"""The thread of the engine: it schedules, runs and accounts for one step after another, and contains their faults."""

from __future__ import annotations

import logging
import threading

from slotdeck.engine.core.events import Event
from slotdeck.engine.core.step import ModelRunnerOutput, SchedulerOutput
from slotdeck.engine.loop.changes import STOPPED, ChangeQueue
from slotdeck.engine.loop.live_changes import LiveChanges
from slotdeck.engine.loop.outputs import outputs_of
from slotdeck.engine.loop.pool_resize import PoolResize
from slotdeck.engine.loop.state import LoopState, Turn
from slotdeck.engine.loop.step_runner import StepRunner
from slotdeck.engine.settings import SettingsError
from slotdeck.engine.telemetry.step_profile import StepProfiler

log = logging.getLogger("slotdeck.engine")

FAULTS_UNTIL_STOP = 3


class StepLoop:
    """Runs until ``state`` is stopping or has a fault. Only this thread schedules, computes and resizes."""

    def __init__(
        self, state: LoopState, live: LiveChanges, runner: StepRunner, changes: ChangeQueue, profiler: StepProfiler
    ) -> None:
        self._state, self._live, self._runner, self._profiler = state, live, runner, profiler
        self._changes = changes
        self._resize: PoolResize | None = None
        self._faults_in_a_row = 0
        self.thread = threading.Thread(target=self._run, name="engine-loop", daemon=True)

    def _run(self) -> None:
        try:
            while self._wait_for_work():
                self._take_turn()
        except Exception as error:  # our own code failed: nothing here can be trusted any more, but everybody is told
            log.exception("the engine loop failed")
            fault = self._state.fault = f"the engine loop failed with {type(error).__name__}: {error}"
            self._state.tell_everybody(fault, "the engine has stopped after a fault")
        finally:
            self._state.turn = None
            self._changes.close()
            if self._resize is not None:
                self._resize.give_up(SettingsError(STOPPED))

    def resize_now(self) -> None:
        """Apply the changes that wait, in the caller's thread. For a loop that has not been started."""
        while self._changes or self._resize is not None:
            self._resize_pool()
            if self._resize is not None:
                self._resize.wait_allocated()

    def _wait_for_work(self) -> bool:
        """Until there is something to do; ``False`` when the loop is to end."""
        state = self._state
        with state.work:
            while not (self._has_work() or self._ends()):
                state.turn = None
                state.work.wait()
            state.turn = Turn(state.clock(), "waiting for its turn")
        return not self._ends()

    def _has_work(self) -> bool:
        if self._state.scheduler.has_work:
            return True
        return bool(self._changes) if self._resize is None else self._resize.can_advance

    def _ends(self) -> bool:
        return self._state.stopping.is_set() or self._state.fault is not None

    def _take_turn(self) -> None:
        state = self._state
        self._resize_pool()
        began = state.clock()
        state.enter("scheduling")
        with state.lock:
            if self._ends() or not state.scheduler.has_work:
                return
            scheduler_output, events = state.scheduler.schedule(state.clock())
            state.telemetry.observe(events)
        started = state.clock()
        result = self._compute(scheduler_output)
        if result is not None:
            self._account(scheduler_output, result, began, started)

    def _resize_pool(self) -> None:
        """Take up a change of the pool's size, or go on with the one that is under way."""
        self._state.enter("resizing the KV pool")
        if self._resize is None and (change := self._changes.get()) is not None:
            resize = PoolResize(change, self._state, self._live, self._runner)
            self._resize = resize if resize.start() else None
        if self._resize is not None and self._resize.can_advance and self._resize.advance():
            self._resize = None

    def _compute(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput | None:
        """The step's result; ``None`` when it failed, which is dealt with by then."""
        self._state.enter("computing")
        if self._resize is not None:
            self._resize.before_step(scheduler_output)
        try:
            return self._runner.run(scheduler_output)
        except Exception as error:  # whatever the model threw: this step's requests fail, the engine goes on
            self._contain(scheduler_output, error)
            return None

    def _account(
        self, scheduler_output: SchedulerOutput, result: ModelRunnerOutput, began: float, started: float
    ) -> None:
        """Take over what the step computed and hand it to the clients."""
        state, scheduler = self._state, self._state.scheduler
        state.enter("taking over a step's result")
        with state.lock:
            if state.gave_up:
                return
            now = state.clock()
            before = {row.request.id: row.request.num_tokens for row in scheduler_output.rows if row.samples}
            events = scheduler.update_from_output(scheduler_output, result, now)
            outputs = outputs_of(scheduler_output, result, before, events, now)
            generated = sum(len(output.token_ids) for output in outputs)
            state.telemetry.observe_step(scheduler_output, now - started, now, generated)
            context = sum(row.start for row in scheduler_output.rows)
            scheduler.cost.observe(
                scheduler_output.num_decodes, scheduler_output.num_prefill_tokens, context, now - started
            )
            state.telemetry.observe(events)
            state.post(outputs)
        self._faults_in_a_row = 0
        committed = state.clock()
        state.enter("handing over tokens")
        if not state.gave_up:
            state.deliver_posted()
        ended = state.clock()
        loop = {"plan": started - began, "commit": committed - now, "hand_over": ended - committed}
        self._profiler.add(ended - began, generated, loop | result.seconds)

    def _contain(self, scheduler_output: SchedulerOutput, error: Exception) -> None:
        state = self._state
        self._faults_in_a_row += 1
        name = type(error).__name__
        log.exception("step %d failed: %s", state.telemetry.counters().steps, name)
        self._runner.forget_swapped()
        events: list[Event] = []
        with state.lock:
            if state.gave_up:
                return
            now = state.clock()
            events += state.scheduler.fail_step(
                scheduler_output, f"the engine failed in a step ({name}), try again", now
            )
            state.telemetry.log("engine_fault", f"a step failed: {name}: {error}")
            if self._faults_in_a_row >= FAULTS_UNTIL_STOP:
                state.fault = f"{FAULTS_UNTIL_STOP} steps in a row failed, the last with {name}: {error}"
                log.error("%s", state.fault)
                for request in list(state.scheduler.requests()):
                    events += state.scheduler.fail(request.id, "the engine has stopped after repeated faults", now)
            state.telemetry.observe(events)
            state.post_ends(events)
        state.deliver_posted()
