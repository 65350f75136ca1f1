"""Changes the size of the KV pool while people stream.

New tensors are allocated in a thread of their own while steps go on. What the pool holds is then copied between steps,
a slice at a time, so that each pause is short. Blocks that a step writes meanwhile are copied again; the last few are
copied in one go, and the new tensors, tables and settings come into force together, under the lock and without
anything that could fail. Until then whatever goes wrong leaves pool, settings and requests as they were. (This is how
virtual machines move while they run: C. Clark et al., "Live Migration of Virtual Machines", 2005.)

A machine that cannot hold both sizes at once resizes tensor by tensor instead, between two steps: streams then pause
for as long as that takes, while health, frames and newcomers are still answered.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping
from typing import Any

from slotdeck.engine.core.running_set import ShrinkPlan
from slotdeck.engine.core.step import SchedulerOutput
from slotdeck.engine.loop.changes import PendingChange
from slotdeck.engine.loop.live_changes import CheckedChange, LiveChanges, RevisionConflictError
from slotdeck.engine.loop.state import LoopState
from slotdeck.engine.loop.step_runner import StepRunner
from slotdeck.engine.settings import SettingsError

log = logging.getLogger("slotdeck.engine")

SLICE_BYTES = 8 << 20
"""KV copied between two steps: some 5 ms on a CPU."""
MAX_ROUNDS = 4
"""Times that what steps wrote meanwhile is copied in slices, before the rest is copied in one go."""


class CopiedBlocks:
    """Which blocks were copied as they are now, and where to."""

    def __init__(self) -> None:
        self.places: dict[int, int] = {}
        """From present block id to new block id."""
        self._sources: dict[int, int] = {}

    def add(self, sources: Mapping[int, int]) -> None:
        """Blocks were copied: new block id to present block id."""
        for new, present in sources.items():
            self.places.pop(self._sources.get(new, -1), None)  # what was copied there before is overwritten
            self._sources.pop(self.places.get(present, -1), None)
            self._sources[new], self.places[present] = present, new

    def forget(self, written: Iterable[int]) -> None:
        """The present blocks of these ids have changed since."""
        for present in written:
            new = self.places.pop(present, None)
            if new is not None:
                del self._sources[new]


class PoolResize:
    """One change of the pool's size, driven by the loop's thread between its steps."""

    def __init__(self, change: PendingChange, state: LoopState, live: LiveChanges, runner: StepRunner) -> None:
        self._change, self._state, self._live, self._runner = change, state, live, runner
        self._allocated = threading.Event()
        self._pool: Any = None
        self._failure: BaseException | None = None
        self._plan: ShrinkPlan | None = None
        self._copied = CopiedBlocks()
        self._todo: list[tuple[int, int]] = []  # new and present block ids, still to be copied in this round
        self._rounds = 0

    def start(self) -> bool:
        """Check the change and begin to allocate; ``False`` if it has its outcome already."""
        try:
            with self._state.lock:
                checked = self._check()
                resizes = checked.num_blocks != self._state.scheduler.pool.num_blocks
        except Exception as error:
            self._change.refuse(error)
            return False
        if not resizes:
            self._apply_without_resize()
            return False
        threading.Thread(target=self._allocate, args=(checked.num_blocks,), name="pool-resize", daemon=True).start()
        return True

    @property
    def can_advance(self) -> bool:
        """Whether :meth:`advance` has anything to do now."""
        return self._allocated.is_set()

    def wait_allocated(self) -> None:
        """Until :meth:`advance` has something to do."""
        self._allocated.wait()

    def before_step(self, scheduler_output: SchedulerOutput) -> None:
        """A step is about to write to some blocks: those have to be copied again."""
        if self._rounds:
            self._copied.forget(scheduler_output.blocks_written())

    def advance(self) -> bool:
        """Copy a slice, or apply the change; ``True`` when the change has its outcome. Called between two steps."""
        if self._change.withdrawn:
            self._discard()
            return True
        try:
            if self._failure is not None:
                raise self._failure
            if self._pool is None:
                self._resize_in_place()
                return True
            if self._rounds == 0:
                self._begin_round()
            if self._todo:
                self._copy_slice()
                return False
            if self._rounds < MAX_ROUNDS and self._begin_round() > self._slice:
                return False
            self._swap_in()
        except Exception as error:
            self._discard()
            self._change.refuse(_explained(error))
        return True

    def give_up(self, error: BaseException) -> None:
        """The loop ends: nothing was changed."""
        self._change.refuse(error)
        self._discard()

    # -- in the thread that allocates ---------------------------------------------------------------------------

    def _allocate(self, num_blocks: int) -> None:
        try:
            self._pool = self._runner.allocate_pool(num_blocks)
        except Exception as error:
            self._failure = error
        self._allocated.set()
        with self._state.lock:
            self._state.work.notify_all()

    # -- in the loop's thread -----------------------------------------------------------------------------------

    @property
    def _slice(self) -> int:
        return max(1, SLICE_BYTES // self._runner.block_bytes)

    def _check(self) -> CheckedChange:
        return self._live.check(self._change.changes, self._change.revision, self._change.source)

    def _apply_without_resize(self) -> None:
        with self._state.lock:
            if self._change.claim():
                self._settle(self._check())

    def _begin_round(self) -> int:
        """Find the blocks that are not copied as they are now; gives how many there are."""
        with self._state.lock:
            missing = self._missing(self._check())
        self._rounds += 1
        self._todo = list(missing.items())
        return len(self._todo)

    def _missing(self, checked: CheckedChange) -> dict[int, int]:
        """The blocks still to be copied, new id to present id. The caller holds the lock."""
        scheduler = self._state.scheduler
        self._plan = None
        if checked.num_blocks < scheduler.pool.num_blocks:
            self._plan = scheduler.plan_shrink(checked.num_blocks, self._copied.places)
        wanted = scheduler.blocks_to_keep(self._plan)
        return {new: old for new, old in wanted.items() if self._copied.places.get(old) != new}

    def _copy_slice(self) -> None:
        part, self._todo = self._todo[: self._slice], self._todo[self._slice :]
        self._copy(dict(part))

    def _copy(self, sources: dict[int, int]) -> None:
        self._runner.copy_blocks(self._pool, sources)
        self._copied.add(sources)
        self._state.progress()

    def _swap_in(self) -> None:
        """Copy what is left and put everything into force, with no step in between."""
        while True:
            with self._state.lock:
                checked = self._check()
                missing = self._missing(checked)
                if not missing:
                    if not self._change.claim():
                        break
                    self._pool = self._runner.use_pool(self._pool)
                    self._settle(checked, self._plan)
                    break
            self._copy(missing)  # requests may be cancelled meanwhile, but nothing is computed
        self._discard()

    def _settle(self, checked: CheckedChange, plan: ShrinkPlan | None = None) -> None:
        """Apply a claimed change. The caller holds the lock."""
        try:
            self._state.telemetry.observe(self._live.apply(checked, plan))
            limits = self._live.limits()
        except BaseException as error:  # a fault of our own: the caller is told all the same
            self._change.outcome.set_exception(error)
            raise
        self._change.outcome.set_result(limits)

    def _discard(self) -> None:
        """Free the tensors that are not in use: those allocated in vain, or those that were replaced."""
        if not self._allocated.is_set():
            threading.Thread(target=self._discard_later, name="pool-free", daemon=True).start()
        elif self._pool is not None:
            pool, self._pool = self._pool, None
            threading.Thread(target=self._runner.free_pool, args=(pool,), name="pool-free", daemon=True).start()

    def _discard_later(self) -> None:
        self._allocated.wait()
        self._discard()

    # -- without room for both sizes ----------------------------------------------------------------------------

    def _resize_in_place(self) -> None:
        with self._state.lock:
            num_blocks, present = self._check().num_blocks, self._state.scheduler.pool.num_blocks
        if num_blocks > present:
            self._grow_in_place(num_blocks, present)
        else:
            self._shrink_in_place(present)

    def _grow_in_place(self, num_blocks: int, present: int) -> None:
        self._runner.resize(num_blocks, self._state.progress)
        try:
            with self._state.lock:
                checked = self._check()
                if self._change.claim():
                    self._settle(checked)
                    return
        except Exception:
            self._runner.resize(present, self._state.progress)
            raise
        self._runner.resize(present, self._state.progress)

    def _shrink_in_place(self, present: int) -> None:
        """Blocks beyond the end are given up before the tensors shrink, so a failure costs a computation anew."""
        state, scheduler = self._state, self._state.scheduler
        with state.lock:
            checked = self._check()
            if not self._change.claim():
                return
            before = scheduler.settings
            moves, events = scheduler.resize(checked.num_blocks, state.clock(), checked.settings)
            state.telemetry.observe(events)
        try:
            self._runner.move(list(moves.items()))
            self._runner.resize(checked.num_blocks, state.progress)
        except Exception as error:
            log.exception("the KV pool could not be made smaller")
            with state.lock:
                scheduler.resize(present, state.clock(), before)
                state.telemetry.observe(scheduler.recompute_all(state.clock()))
            self._change.outcome.set_exception(_explained(error))
            return
        with state.lock:
            self._live.record(checked, before)
            limits = self._live.limits()
        self._change.outcome.set_result(limits)


def _explained(error: Exception) -> Exception:
    """What the caller of a failed change is told."""
    if isinstance(error, MemoryError | RuntimeError | ValueError) and not isinstance(error, RevisionConflictError):
        return SettingsError(str(error) or "memory ran out")
    return error
