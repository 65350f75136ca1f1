"""Who may enter next: the order of the queue, the room that each needs, and whom others may pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from engine.core.batching import POLICIES, Policy
from engine.core.block_pool import BlockPool
from engine.core.request import Request
from engine.core.slots import Slots
from engine.core.waiting import WaitingQueue
from engine.settings import LiveSettings

MOST_OVERTAKEN = 4
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
    slots: Slots,
    pool: BlockPool,
    settings: LiveSettings,
    in_force: Policy,
    *,
    forming: bool = False,
) -> Iterator[tuple[Request, Sequence[Request]]]:
    """Who could be admitted now, in order, each with those it would pass; as if each before it had been.

    Nobody passes a preempted request, and nobody enters while another mode than the one asked for is ``in_force``.
    ``forming``: a batch is being put together, its first ones admitted.
    """
    policy = POLICIES[settings.mode]
    if slots.preempted or (slots.num_taken and policy is not in_force):
        return
    if slots.num_taken and not (policy.joins_running or forming):
        return
    running, available = len(slots.running), pool.num_available
    passed: list[Request] = []
    for request in waiting:
        if running + len(slots.held) >= policy.slots(settings.slots):
            return
        if request.waits_for_leader:
            continue
        cost = slots.tables.cost(request)
        if fits(cost, running, available):
            yield request, tuple(passed)
            running, available = running + 1, available - cost
        elif request.overtaken >= MOST_OVERTAKEN or len(passed) >= LOOK_AHEAD:
            return
        else:
            passed.append(request)
