"""One request from arrival to its end: its tokens, its progress, its timeline."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from slotdeck.engine.core.block_pool import BlockHash, extend_block_hashes


class State(Enum):
    """Where a request is; it is in exactly one place."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    FAILED = "failed"
    REJECTED = "rejected"
    """Refused while it waited: the engine is shutting down. Nothing was computed for it."""

    @property
    def ended(self) -> bool:
        return self in (State.FINISHED, State.CANCELLED, State.FAILED, State.REJECTED)


class FinishReason(Enum):
    """Why a request ended by itself, in OpenAI's words."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen.

    ``temperature`` 0 is greedy. ``top_k`` 0, ``top_p`` 1 and ``min_p`` 0 are off. The draw for a position depends on
    ``seed`` and the position alone, so a request gives the same text whatever shares its batch. ``stop_token_ids`` end
    the request as ``stop``; the ending token counts as generated but is not part of the text.

    Logits are changed in this order: ``logit_bias`` is added; ``repetition_penalty`` (1 is off) divides positive and
    multiplies negative logits of tokens in prompt or output; ``presence_penalty`` and ``frequency_penalty`` times the
    count are subtracted for tokens in the output; until ``min_tokens`` are generated no stop token can be chosen.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    """Least probability of a token that may be drawn, as a share of the best token's."""
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    """Token id and what is added to its logit; each id once."""
    min_tokens: int = 0
    seed: int = 0
    stop_token_ids: frozenset[int] = frozenset()
    top_logprobs: int | None = None
    """Log-probabilities wanted with each token: the chosen token's and those of so many best; ``None``: none."""

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, not {self.max_tokens}")
        if not self.repetition_penalty > 0:
            raise ValueError(f"repetition_penalty must be above 0, not {self.repetition_penalty}")


@dataclass(slots=True)
class Timeline:
    """Monotonic stamps in seconds: arrival <= queued <= scheduled <= first_token <= last_token <= ended.

    ``arrival`` is before tokenising, ``queued`` after it (the waiting queue is entered), ``scheduled`` is the first
    admission to a slot. ``None``: not reached yet.
    """

    arrival: float
    queued: float
    scheduled: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    ended: float | None = None

    @property
    def intake(self) -> float:
        """Seconds spent before the queue: reading, rendering the template, tokenising."""
        return self.queued - self.arrival

    @property
    def queue_wait(self) -> float | None:
        """Seconds between queue and first admission."""
        return None if self.scheduled is None else self.scheduled - self.queued

    @property
    def prefill(self) -> float | None:
        """Seconds between first admission and first token (preemptions before it included)."""
        if self.first_token is None or self.scheduled is None:
            return None
        return self.first_token - self.scheduled

    @property
    def ttft(self) -> float | None:
        """Time to first token: intake + queue wait + prefill."""
        return None if self.first_token is None else self.first_token - self.arrival


@dataclass(slots=True, eq=False)
class Request:
    """A prompt being continued.

    There is no prefill object and no decode object: ``num_computed_tokens`` (tokens whose KV is in the pool) chases
    ``num_tokens`` (prompt + output). It decodes when exactly one token is missing and an output token exists, and
    prefills otherwise. A preemption sets ``num_computed_tokens`` back to 0 and loses nothing else.
    """

    id: str
    user: str
    token_ids: list[int]
    """Prompt, then output as it is generated."""
    sampling: SamplingParams
    timeline: Timeline
    num_prompt_tokens: int = field(init=False)
    num_computed_tokens: int = 0
    block_ids: list[int] = field(default_factory=list)
    """Block i holds the KV of tokens ``i * 16`` to ``i * 16 + 15``."""
    state: State = State.WAITING
    slot: int | None = None
    """Place in the batch; kept across preemption."""
    admission: int | None = None
    """Rank of the first admission, kept across preemption: the order in which the pool protects requests."""
    requested_end: State | None = None
    """FINISHED or CANCELLED, asked for while a step computes this request; it ends when that step is committed."""
    cache_salt: str = ""
    """Whose cached prefixes it may use and add to; set when it is queued."""
    block_hashes: list[BlockHash] = field(default_factory=list)
    """Hashes of its full blocks from the first on, as far as they were computed. Those of the prompt may be given."""
    num_published: int = 0
    """Blocks of its table that were offered as cached prefix."""
    cached_tokens: int = 0
    """Prompt tokens that were found in the prefix cache at first admission."""
    parent: Request | None = None
    """Of several answers to one prompt: the one that computes it. Admissible when that is done or has ended."""
    bypass_count: int = 0
    """How often somebody behind it in the queue was admitted because it could not be placed."""
    swapped_tokens: int = 0
    """While preempted: computed tokens whose KV is in host memory. 0: it will be computed again."""
    swapped_bytes: int = 0
    """Bytes of KV moved for this request, out and back, in total."""
    lost_tokens: int = 0
    """While preempted: computed tokens that were thrown away."""
    finish_reason: FinishReason | None = None
    output_limit: int | None = None
    """Output tokens that count when a stop string ended the request; those beyond are dropped."""
    failure: str | None = None
    num_preemptions: int = 0
    recomputed_tokens: int = 0
    stalled: float = 0.0
    preempted_at: float | None = None
    gaps: list[float] = field(default_factory=list)
    """Seconds between successive output tokens: n tokens give n - 1 gaps."""

    def __post_init__(self) -> None:
        if not self.token_ids:
            raise ValueError("a request needs at least one prompt token")
        self.num_prompt_tokens = len(self.token_ids)

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def max_total_tokens(self) -> int:
        """Prompt + most output: what the pool must be able to hold for this request to be accepted."""
        return self.num_prompt_tokens + self.sampling.max_tokens

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def waits_for_parent(self) -> bool:
        parent = self.parent
        return parent is not None and not parent.state.ended and parent.num_computed_tokens < parent.num_prompt_tokens

    def first_block_hashes(self, num_blocks: int) -> list[BlockHash]:
        """The hashes of its first ``num_blocks`` blocks, all of them full."""
        extend_block_hashes(self.block_hashes, self.token_ids, num_blocks, self.cache_salt)
        return self.block_hashes[:num_blocks]

    def set_cache_salt(self, cache_salt: str) -> None:
        """Say whose cached prefixes it may use. Hashes that were computed with another salt are computed again."""
        self.cache_salt = cache_salt
        if self.block_hashes and self.block_hashes[0].cache_salt != cache_salt:
            self.block_hashes = []

    @property
    def decoding(self) -> bool:
        """True when a step computes exactly its newest output token."""
        return self.num_output_tokens > 0 and self.num_computed_tokens == self.num_tokens - 1
