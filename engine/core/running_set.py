"""Who holds a slot, and the blocks that come and go with it: admit, preempt, resume, leave.

A request takes a slot when it is admitted and keeps it until it ends, across preemption. When it ends in a static
batch, its slot stays taken until the longest of that batch has ended; its blocks go back at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slotdeck.engine.core.block_pool import BlockPool, PoolExhaustedError, blocks_for
from slotdeck.engine.core.block_tables import BlockTables
from slotdeck.engine.core.events import Event, EventKind, PreemptionCause
from slotdeck.engine.core.request import Request, State
from slotdeck.engine.core.swap import SwapLedger


@dataclass(frozen=True, slots=True)
class ShrinkPlan:
    """What making the pool smaller takes."""

    num_blocks: int
    victims: tuple[Request, ...]
    """Running requests to preempt, newest first."""
    moves: dict[int, int]
    """From each block that stays used beyond the new end to its place below it."""


class RunningSet:
    """The admitted requests. ``block_bytes`` is what one block takes in host memory."""

    def __init__(self, pool: BlockPool, prefix_cache: bool, block_bytes: int) -> None:
        self.running: list[Request] = []
        """They hold blocks; ordered by first admission."""
        self.preempted: list[Request] = []
        """They lost their blocks and wait to resume; ordered by first admission."""
        self.held: list[Request] = []
        """They have ended, but the batch they were in has not."""
        self.reserved: list[Request] = []
        """Further answers to a prompt that a static batch computes: they wait for it, and their slot waits for them."""
        self._tables = BlockTables(pool, prefix_cache)
        self.swap = SwapLedger(block_bytes)
        self._pool = pool
        self._admissions = 0

    def taken(self) -> list[Request]:
        """Everybody, by slot number."""
        return sorted([*self.running, *self.preempted, *self.held], key=_slot)

    @property
    def num_taken(self) -> int:
        return len(self.running) + len(self.preempted) + len(self.held)

    def set_prefix_cache(self, enabled: bool) -> None:
        """Whether prompts reuse cached prefixes from now on; ``False`` also forgets those that are cached."""
        self._tables.prefix_cache = enabled
        if not enabled:
            self._pool.drop_prefixes()

    def publish(self, request: Request) -> None:
        """Offer the blocks of a running request that have become full and computed as a prefix for others."""
        self._tables.publish(request)

    @property
    def awaits_more(self) -> bool:
        """Whether a reserved slot will be taken once a prompt that is being computed is done."""
        return any(request.waits_for_parent and request.parent in self.running for request in self.reserved)

    def reserve(self, requests: Sequence[Request], slots: int) -> None:
        """Keep slots of this batch, of ``slots`` in effect, for as many of ``requests`` as there are slots left."""
        self.reserved += requests
        self.trim_reserved(slots)

    def trim_reserved(self, slots: int) -> None:
        """Keep no more slots than ``slots`` in effect leave; whoever loses theirs waits for the next batch."""
        del self.reserved[max(0, slots - self.num_taken) :]
        self._end_batch()

    def give_up_reserved(self, request: Request) -> None:
        """One that waited has ended; its slot need not be kept."""
        if request in self.reserved:
            self.reserved.remove(request)
            self._end_batch()

    def admit(self, request: Request, now: float) -> Event:
        """Give a request that waited the lowest slot and blocks for its whole known length, which must fit."""
        if request in self.reserved:
            self.reserved.remove(request)
        self._tables.take(request)
        request.cached_tokens = request.num_computed_tokens
        taken = {other.slot for other in self.taken()}
        request.slot = next(slot for slot in range(len(taken) + 1) if slot not in taken)
        request.state = State.RUNNING
        request.admission = self._admissions
        request.timeline.scheduled = now
        self._admissions += 1
        self.running.append(request)  # the newest admission belongs at the end
        return Event(EventKind.ADMITTED, request, now)

    def preempt(
        self, request: Request, now: float, *, swap_space: int = 0, cause: PreemptionCause = "pool_full"
    ) -> Event:
        """Take the blocks of a running request. Their content is copied out if so many bytes of host memory allow it,
        else thrown away."""
        computed = request.num_computed_tokens
        moved = self.swap.swap_out(request, swap_space)
        request.lost_tokens = 0 if moved else computed
        self._tables.release(request)
        self.running.remove(request)
        self.preempted.append(request)
        self.preempted.sort(key=_admission)
        request.state = State.PREEMPTED
        request.num_preemptions += 1
        request.preempted_at = now
        return Event(EventKind.PREEMPTED, request, now, tokens=computed, swapped_bytes=moved, cause=cause)

    def cost_to_admit(self, request: Request) -> int:
        """Blocks of those available now that a waiting request needs for its whole known length."""
        return self._tables.cost(request)

    def cost_to_resume(self, request: Request) -> int:
        """Blocks of those available now that a preempted request needs for its whole known length."""
        return blocks_for(request.num_tokens) if request.swapped_tokens else self._tables.cost(request)

    def resume(self, request: Request, now: float) -> Event:
        """Give a preempted request blocks again, which must fit. What was copied out comes back; the rest, but for what
        the prefix cache still has, is computed again."""
        moved = 0
        self.preempted.remove(request)
        if request.swapped_tokens:
            self._tables.take_swapped(request)
            moved = self.swap.swap_in(request)
        else:
            self._tables.take(request)
        again = max(0, request.lost_tokens - request.num_computed_tokens)
        request.recomputed_tokens += again
        request.lost_tokens = 0
        stalled = _end_stall(request, now)
        request.state = State.RUNNING
        self.running.append(request)
        self.running.sort(key=_admission)
        return Event(EventKind.RESUMED, request, now, tokens=again, stalled=stalled, swapped_bytes=moved)

    def leave(self, request: Request, now: float, *, hold: bool) -> None:
        """An admitted request has ended: it gives back all it holds, but with ``hold`` its slot."""
        if request.state is State.RUNNING:
            self.running.remove(request)
        else:
            self.preempted.remove(request)
            _end_stall(request, now)
            self.swap.drop(request)
        self._tables.release(request)
        if hold:
            self.held.append(request)
        self._end_batch()

    def _end_batch(self) -> None:
        """Give the held slots back when nobody of the batch is left."""
        if not (self.running or self.preempted or self.reserved):
            self.held.clear()

    def discard_kv(self, now: float) -> list[Event]:
        """KV may be damaged, in the pool and in host memory: whoever is admitted will be computed again."""
        self.swap.discard_kv(self.preempted)
        events = [self.preempt(request, now, cause="step_failed") for request in reversed(self.running.copy())]
        self._pool.drop_prefixes()
        return events

    def plan_shrink(self, num_blocks: int, preferred: Mapping[int, int] | None = None) -> ShrinkPlan:
        """What a smaller pool takes: the newest are preempted as far as needed, the rest moves below the new end.

        Changes nothing. Moves in ``preferred`` (an earlier plan's) are kept where they are still possible.
        """
        victims: list[Request] = []
        while True:
            try:
                moves = self._pool.plan_shrink(num_blocks, [victim.block_ids for victim in victims], preferred)
            except PoolExhaustedError:
                victims.append(self.running[-1 - len(victims)])
            else:
                return ShrinkPlan(num_blocks, tuple(victims), moves)

    def shrink(self, plan: ShrinkPlan, now: float) -> list[Event]:
        """Carry out a plan that was made since anything last changed. Cannot fail."""
        events = [self.preempt(victim, now, cause="pool_shrunk") for victim in plan.victims]
        self._pool.shrink(plan.num_blocks, plan.moves)
        for request in self.running:
            request.block_ids = [plan.moves.get(block_id, block_id) for block_id in request.block_ids]
        return events


def _end_stall(request: Request, now: float) -> float:
    assert request.preempted_at is not None
    stalled = now - request.preempted_at
    request.stalled += stalled
    request.preempted_at = None
    return stalled


def _admission(request: Request) -> int:
    assert request.admission is not None
    return request.admission


def _slot(request: Request) -> int:
    assert request.slot is not None
    return request.slot
