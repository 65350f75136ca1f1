"""Who may enter next: the order of the queue, the room that each needs, and whom others may pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from slotdeck.engine.core.batching import POLICIES, Policy
from slotdeck.engine.core.block_pool import BlockPool
from slotdeck.engine.core.request import Request
from slotdeck.engine.core.running_set import RunningSet
from slotdeck.engine.core.waiting import WaitingQueue
from slotdeck.engine.settings import LiveSettings

MAX_BYPASSES = 4
"""So often may others pass a request at the head that cannot be placed; then nobody passes it."""
LOOK_AHEAD = 16
"""So many that cannot be placed are looked past, to find one that can."""


def fits(cost: int, running: int, available: int) -> bool:
    """Its whole known length, and a block for each running request, so that it is not preempted right away.

    Alone it needs no such margin, which keeps the oldest request live.
    """
    return cost + running <= available


def admissible(
    waiting: WaitingQueue,
    running_set: RunningSet,
    pool: BlockPool,
    settings: LiveSettings,
    in_force: Policy,
    *,
    forming: bool = False,
) -> Iterator[tuple[Request, Sequence[Request]]]:
    """Who could be admitted now, in order, each with those it would pass; as if each before it had been.

    Nobody passes a preempted request, and nobody enters while another mode than the one asked for is ``in_force``. A
    batch that runs takes in only those that it keeps a slot for. ``forming``: it is being put together.
    """
    policy = POLICIES[settings.mode]
    if running_set.preempted or (running_set.num_taken and policy is not in_force):
        return
    running, available = len(running_set.running), pool.num_available
    passed: list[Request] = []
    newcomers = policy.joins_running or forming or not running_set.num_taken
    free = policy.slots(settings.slots) - running_set.num_taken - len(running_set.reserved)
    for request in waiting if newcomers else running_set.reserved:
        if newcomers and free <= 0:
            return
        if request.waits_for_parent:
            continue
        cost = running_set.cost_to_admit(request)
        if fits(cost, running, available):
            yield request, tuple(passed)
            running, available = running + 1, available - cost
            free -= 1 + (len(child_requests(waiting, request)) if policy.holds_slots else 0)
        elif request.bypass_count >= MAX_BYPASSES or len(passed) >= LOOK_AHEAD:
            return
        else:
            passed.append(request)


def child_requests(waiting: WaitingQueue, parent: Request) -> list[Request]:
    """Those in the queue that wait for ``parent`` to compute the prompt they share."""
    return [request for request in waiting if request.parent is parent]
