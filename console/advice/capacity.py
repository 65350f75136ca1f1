"""Capacity in numbers: the memory of a token's KV, what fits the memory, and how many requests are in flight.

Sizes are in bytes, durations in seconds. Nothing here is rounded.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, inf

from slotdeck.engine.core.kv_memory import kv_bytes_per_token, scale_bytes_per_token, tokens_that_fit

WEIGHT_WIDTHS = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "int8": 1.03125, "int4": 0.625}
"""Bytes of one weight. int8 has a 16-bit scale for each group of 64 weights, int4 two 16-bit numbers for each 32."""
PACKED = ("int8", "int4")
"""Types with which the embedding table stays in 16 bits and the output layer in int8."""
MAX_NAME = 100
CONTEXT_STEP = 256
"""Tokens. A recommended context is a multiple of this."""


class CapacityError(ValueError):
    """A given number is out of range. The message names it and says what is allowed."""


@dataclass(frozen=True)
class ModelFacts:
    """What the arithmetic needs to know about a model."""

    name: str
    layers: int
    """Layers that keep K and V."""
    kv_heads: int
    head_dim: int
    weight_bytes: int | None = None
    """Memory of the loaded weights."""
    weights: str | None = None
    """Their type."""
    trained_context: int | None = None
    parameters: int | None = None
    """Number of weights; a tied embedding counts once."""
    embedding: int = 0
    """How many of them are the embedding table; 0 if that is unknown."""
    tied: bool = False
    """The embedding table is the output layer too."""
    notes: tuple[str, ...] = ()
    """Sentences about what the numbers do not cover."""

    def __post_init__(self) -> None:
        # The name comes from a file or another process. It must not contain anything that moves a cursor.
        object.__setattr__(self, "name", "".join(one if one.isprintable() else "?" for one in self.name[:MAX_NAME]))
        for name in ("layers", "kv_heads", "head_dim"):
            if getattr(self, name) < 1:
                raise CapacityError(f"{self.name}: {name} must be at least 1, not {getattr(self, name)}")

    def kv_bytes(self, kv_dtype: str) -> int:
        """Bytes of K and V of one token, without scales."""
        return kv_bytes_per_token(self.layers, self.kv_heads, self.head_dim, kv_dtype)

    def scale_bytes(self, kv_dtype: str) -> int:
        """Bytes of the scales of one token; 0 unless the KV type is int8."""
        return scale_bytes_per_token(self.layers, self.kv_heads, kv_dtype)

    def token_bytes(self, kv_dtype: str) -> int:
        """Bytes that one token takes in the KV cache, scales included."""
        return self.kv_bytes(kv_dtype) + self.scale_bytes(kv_dtype)

    def with_weights(self, weights: str | None) -> ModelFacts:
        """The same model with weights of another type, a key of :data:`WEIGHT_WIDTHS`.

        The model is returned unchanged for ``None``, for its own type, and if the number of parameters is unknown.
        """
        if weights is None or weights == self.weights or self.parameters is None:
            return self
        layers, tables = self.parameters, 0.0
        if weights in PACKED:
            layers -= self.embedding * (1 if self.tied else 2)
            tables = self.embedding * (WEIGHT_WIDTHS["bf16"] + WEIGHT_WIDTHS["int8"])
        size = ceil(layers * WEIGHT_WIDTHS[weights] + tables)
        return replace(self, weight_bytes=size, weights=weights)


@dataclass(frozen=True)
class Memory:
    """The memory that weights and KV cache share. Raises CapacityError for a share that is out of range."""

    total: int
    """Bytes: all memory of a GPU, or the RAM that other programs do not use."""
    gpu: bool
    utilisation: float = 1.0
    """The part of it that may be used, above 0 and at most 1."""

    def __post_init__(self) -> None:
        if not 0 < self.utilisation <= 1:
            raise CapacityError(f"utilisation must be above 0 and at most 1, not {self.utilisation:g}")

    @property
    def usable(self) -> int:
        """Bytes for weights and KV cache."""
        return int(self.total * self.utilisation)


@dataclass(frozen=True)
class Capacity:
    """What fits: a model, a KV type and a memory together."""

    model: ModelFacts
    memory: Memory
    kv_dtype: str
    context: int
    """Tokens of one conversation."""

    @property
    def cache_bytes(self) -> int:
        """What the weights leave for the KV cache; below 0 if the weights do not fit."""
        return self.memory.usable - (self.model.weight_bytes or 0)

    @property
    def cache_tokens(self) -> int:
        """Tokens that fit the KV cache, in whole blocks."""
        return tokens_that_fit(self.cache_bytes, self.model.token_bytes(self.kv_dtype))

    @property
    def conversation_bytes(self) -> int:
        """Bytes of one full conversation."""
        return self.context * self.model.token_bytes(self.kv_dtype)

    @property
    def conversations(self) -> float:
        """How many full conversations fit, not rounded."""
        return self.cache_tokens / self.context

    def with_kv_dtype(self, kv_dtype: str) -> Capacity:
        """The same with another KV type."""
        return replace(self, kv_dtype=kv_dtype)


@dataclass(frozen=True)
class Speed:
    """Measured speed of one stream alone on this machine, in tokens per second.

    Raises CapacityError for a speed that is 0 or below, or infinite.
    """

    prefill: float
    decode: float

    def __post_init__(self) -> None:
        if not (0 < self.prefill < inf and 0 < self.decode < inf):
            raise CapacityError("measured speeds must be above 0 tokens per second")

    def turn_seconds(self, prompt: int, answer: int) -> float:
        """Seconds that one turn takes alone: reading the prompt and writing the answer, both in tokens."""
        return prompt / self.prefill + answer / self.decode


@dataclass(frozen=True)
class Load:
    """The users and how often they ask. Raises CapacityError for numbers that are out of range."""

    users: int
    generate_seconds: float
    """Seconds that the server works on one turn."""
    turn_seconds: float
    """From the start of one turn to the start of the next; at most ``generate_seconds`` for users who never pause."""

    def __post_init__(self) -> None:
        if self.users < 1:
            raise CapacityError(f"users must be at least 1, not {self.users}")
        if not (0 < self.generate_seconds < inf and 0 <= self.turn_seconds < inf):
            raise CapacityError("the seconds of work for a turn must be above 0, and those between turns at least 0")

    @property
    def in_flight(self) -> float:
        """How many requests are in flight on average, at most one for each user (Little's law)."""
        if self.turn_seconds <= self.generate_seconds:
            return float(self.users)
        return self.users * self.generate_seconds / self.turn_seconds


def context_for(prompt: int, answer: int) -> int:
    """The context that a prompt and its answer need, rounded up to a multiple of :data:`CONTEXT_STEP`."""
    return max(1, ceil((prompt + answer) / CONTEXT_STEP)) * CONTEXT_STEP
