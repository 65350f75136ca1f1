"""What goes into a step and what comes out: the scheduler's output and the model runner's."""

from __future__ import annotations

from dataclasses import dataclass, field

from slotdeck.engine.core.request import Request
from slotdeck.engine.settings import BLOCK_SIZE


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural log-probabilities at one output position, by the model's own logits: before temperature, penalties,
    bias and cuts."""

    logprob: float
    """Of the chosen token."""
    top: tuple[tuple[int, float], ...] = ()
    """Token id and log-probability of the best tokens, best first; as many as were asked for."""


@dataclass(frozen=True, slots=True)
class ScheduledRequest:
    """One request's share of a step: compute tokens ``start`` to ``start + count - 1``."""

    request: Request
    start: int
    count: int
    samples: bool
    """True when the last of these tokens is the newest known one, so its logits give the next token."""


@dataclass(frozen=True, slots=True)
class Swap:
    """Blocks of one preempted request on their way to host memory or back, in the order of its block table."""

    request_id: str
    block_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SchedulerOutput:
    """The flat batch of one step: decode rows first (one token each), then prefill chunks."""

    rows: tuple[ScheduledRequest, ...]
    num_decodes: int
    swap_outs: tuple[Swap, ...] = ()
    """Copied to host memory before anything else of this step: their blocks may be in use again in it."""
    swap_drops: tuple[str, ...] = ()
    """Requests whose host copy is not needed any more; after ``swap_outs``."""
    swap_ins: tuple[Swap, ...] = ()
    """Copied back into these blocks before any row is computed."""

    def blocks_written(self) -> set[int]:
        """Ids of the blocks whose content this step changes."""
        written = {block_id for swap in self.swap_ins for block_id in swap.block_ids}
        for row in self.rows:
            written.update(
                row.request.block_ids[row.start // BLOCK_SIZE : (row.start + row.count - 1) // BLOCK_SIZE + 1]
            )
        return written

    @property
    def num_prefill_tokens(self) -> int:
        return sum(row.count for row in self.rows[self.num_decodes :])


@dataclass(slots=True)
class ModelRunnerOutput:
    """What the runner made of a plan: for each sampling row a token, or the reason why that row failed."""

    tokens: dict[str, int] = field(default_factory=dict)
    """Request id to sampled token id."""
    failures: dict[str, str] = field(default_factory=dict)
    """Request id to reason (NaN logits, a token outside the vocabulary); such a request fails alone."""
    logprobs: dict[str, TokenLogprobs] = field(default_factory=dict)
    """Request id to log-probabilities of its sampled token, for the requests that ask for them."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Where the time went, by name of a part; what is in none of them is nobody's."""
