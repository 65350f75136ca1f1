"""The three ways to batch, as small policies over one scheduler: who may enter, and when running requests decode.

serial      one request at a time, the rest queue
static      take what waits when all slots are empty, run it together, hold every slot until the longest has finished
continuous  schedule per step: a slot freed in one step is taken in the next
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slotdeck.engine.core.request import Request


@dataclass(frozen=True, slots=True)
class Policy:
    """How one mode of batching differs from the others."""

    name: str
    slots: Callable[[int], int]
    """Slots in effect, from the setting."""
    joins_running: bool
    """Whether a request may be admitted while others that were there before hold slots."""
    holds_slots: bool
    """Whether a finished request keeps its slot (not its KV) until all others of its batch have finished.

    Then slots are also kept for further answers to a prompt of the batch, which enter when it is computed.
    """
    prefill_first: bool
    """Whether nobody decodes before everybody in the batch has its first token."""

    def may_decode(self, running: Sequence[Request]) -> bool:
        return not self.prefill_first or all(request.num_output_tokens for request in running)


POLICIES = {
    policy.name: policy
    for policy in (
        Policy("serial", lambda _slots: 1, joins_running=True, holds_slots=False, prefill_first=False),
        Policy("static", lambda slots: slots, joins_running=False, holds_slots=True, prefill_first=True),
        Policy("continuous", lambda slots: slots, joins_running=True, holds_slots=False, prefill_first=False),
    )
}
