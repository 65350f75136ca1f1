"""What must hold of the scheduler after every call, as assertions; tests and simulations check them after each step."""

from __future__ import annotations

from slotdeck.engine.core.block_pool import blocks_for
from slotdeck.engine.core.request import State
from slotdeck.engine.core.scheduler import Scheduler


def check_scheduler(scheduler: Scheduler) -> None:
    """Raise AssertionError, saying which, unless all invariants hold."""
    waiting, running, preempted = list(scheduler.waiting), scheduler.running, scheduler.preempted
    places = [*waiting, *running, *preempted]
    assert len(places) == len({request.id for request in places}) == scheduler.num_in_flight, "not in exactly one place"
    assert all(not request.block_ids for request in (*waiting, *preempted)), "a waiter holds blocks"
    assert all(request.state is State.WAITING for request in waiting)
    assert all(request.state is State.RUNNING for request in running)
    assert all(request.state is State.PREEMPTED for request in preempted)
    assert scheduler.waiting.num_in_flight == len(places), "the queue has lost count of its users"
    for admitted in (running, preempted):
        ranks = [request.admission or 0 for request in admitted]
        assert ranks == sorted(ranks), "the order of first admission is lost"
    slots = [request.slot for request in scheduler.admitted()]
    assert None not in slots
    assert len(set(slots)) == len(slots), "a slot is held twice"
    reserved = scheduler.running_set.reserved
    assert not scheduler.held or running or preempted or reserved, "a finished batch holds slots"
    assert all(request.id in scheduler.waiting for request in reserved), "a slot is kept for somebody who is gone"
    assert not reserved or scheduler.running_set.num_taken, "slots are kept of a batch that is over"
    for request in running:
        assert request.num_computed_tokens <= request.num_tokens
        assert len(request.block_ids) >= blocks_for(request.num_computed_tokens)
    scheduler.pool.check(request.block_ids for request in running)
    scheduler.running_set.swap.check(preempted)
