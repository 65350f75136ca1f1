"""Capacity in numbers: what a token of KV takes, what the memory holds, how many requests are in flight. Pure.

Bytes are bytes, durations seconds. Nothing here is rounded: what is shown rounded says so (:func:`about`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, floor, inf

from slotdeck.engine.settings import BLOCK_SIZE

KV_WIDTHS = {"fp32": 4, "bf16": 2, "fp16": 2, "int8": 1}
"""Bytes of one value of K or V by the type of the cache."""
SCALE_BYTES = 4
"""Of each scale of an int8 cache: one for K and one for V, per layer and kv head."""
WEIGHT_WIDTHS = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "int8": 1.03125, "int4": 0.625}
"""Bytes of one weight; int8 in groups of 64 with a 16-bit scale each, int4 in groups of 32 with two 16-bit numbers."""
PACKED = ("int8", "int4")
"""Types in which the table of tokens is kept in 16 bits and the output layer in int8, whatever the layers have."""
UTILISATION = 0.92
"""Part of a GPU's memory that weights and cache may take together; the rest is for everything else on the GPU."""
MAX_NAME = 100
EVERY_CONTEXT = 256
"""A context is recommended in steps of this many tokens."""


class CapacityError(ValueError):
    """The numbers given make no sense. The message says which one and what is allowed."""


@dataclass(frozen=True)
class ModelFacts:
    """What the arithmetic needs to know of a model."""

    name: str
    layers: int
    """Those that keep K and V."""
    kv_heads: int
    head_dim: int
    weight_bytes: int | None = None
    """Memory of the weights once loaded."""
    weights: str | None = None
    """Their type."""
    trained_context: int | None = None
    parameters: int | None = None
    """Weights, a tied embedding counted once."""
    embedding: int = 0
    """Of them, those of the table of tokens; 0 where that is not known."""
    tied: bool = False
    """The table is the output layer too."""
    notes: tuple[str, ...] = ()
    """Sentences about what the numbers do not cover."""

    def __post_init__(self) -> None:
        # The name comes from a file or another process: nothing in it may move a cursor.
        object.__setattr__(self, "name", "".join(one if one.isprintable() else "?" for one in self.name[:MAX_NAME]))
        for name in ("layers", "kv_heads", "head_dim"):
            if getattr(self, name) < 1:
                raise CapacityError(f"{self.name}: {name} must be at least 1, not {getattr(self, name)}")

    def kv_bytes(self, kv_dtype: str) -> int:
        """Bytes of K and V of one token: 2 x layers x kv_heads x head_dim x bytes per value."""
        return 2 * self.layers * self.kv_heads * self.head_dim * KV_WIDTHS[kv_dtype]

    def scale_bytes(self, kv_dtype: str) -> int:
        """Bytes of the scales of one token beside them; 0 but for int8."""
        return 2 * self.layers * self.kv_heads * SCALE_BYTES if kv_dtype == "int8" else 0

    def token_bytes(self, kv_dtype: str) -> int:
        """Bytes that one token takes in the cache, scales included."""
        return self.kv_bytes(kv_dtype) + self.scale_bytes(kv_dtype)

    def weighing(self, weights: str | None) -> ModelFacts:
        """The model with weights of another type; itself where that is ``None``, the same, or not to be computed."""
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
    """The memory that weights and cache share."""

    total: int
    """Bytes: all memory of a GPU, or the RAM that nobody else uses."""
    gpu: bool
    utilisation: float = 1.0
    """Part of it that may be used, above 0 and at most 1."""

    def __post_init__(self) -> None:
        if not 0 < self.utilisation <= 1:
            raise CapacityError(f"utilisation must be above 0 and at most 1, not {self.utilisation:g}")

    @property
    def usable(self) -> int:
        """Bytes for weights and cache."""
        return int(self.total * self.utilisation)


@dataclass(frozen=True)
class Capacity:
    """What fits: a model, a type of cache and a memory put together."""

    model: ModelFacts
    memory: Memory
    kv_dtype: str
    context: int
    """Tokens of one conversation."""

    @property
    def cache_bytes(self) -> int:
        """What the weights leave; below 0 when they do not fit themselves."""
        return self.memory.usable - (self.model.weight_bytes or 0)

    @property
    def cache_tokens(self) -> int:
        """Tokens that fit, in whole blocks."""
        return tokens_that_fit(self.cache_bytes, self.model.token_bytes(self.kv_dtype))

    @property
    def conversation_bytes(self) -> int:
        """Bytes of one full conversation."""
        return self.context * self.model.token_bytes(self.kv_dtype)

    @property
    def conversations(self) -> float:
        """How many full conversations fit, not rounded; the whole ones are ``int`` of it."""
        return self.cache_tokens / self.context

    def with_cache(self, kv_dtype: str) -> Capacity:
        """The same with another type of cache."""
        return Capacity(self.model, self.memory, kv_dtype, self.context)


def tokens_that_fit(cache_bytes: int, token_bytes: int) -> int:
    """Tokens in whole blocks whose K, V and scales take at most ``cache_bytes``."""
    return max(0, cache_bytes) // (token_bytes * BLOCK_SIZE) * BLOCK_SIZE


@dataclass(frozen=True)
class Speed:
    """One stream alone on this machine, measured: tokens per second."""

    prefill: float
    decode: float

    def __post_init__(self) -> None:
        if not (0 < self.prefill < inf and 0 < self.decode < inf):
            raise CapacityError("measured speeds are above 0 tokens per second")

    def turn(self, prompt: int, answer: int) -> float:
        """Seconds that one turn generates when nobody else is there: reading the prompt and writing the answer."""
        return prompt / self.prefill + answer / self.decode


@dataclass(frozen=True)
class Load:
    """The people and what they do."""

    users: int
    generate_seconds: float
    """That the server works for one turn."""
    turn_seconds: float
    """From the start of one turn to the start of the next; not above ``generate_seconds`` for who never pauses."""

    def __post_init__(self) -> None:
        if self.users < 1:
            raise CapacityError(f"users must be at least 1, not {self.users}")
        if not (0 < self.generate_seconds < inf and 0 <= self.turn_seconds < inf):
            raise CapacityError("the seconds of a turn are above 0, and those between turns not below 0")

    @property
    def in_flight(self) -> float:
        """Requests at work at a time: users x seconds generating / seconds between turns, at most all users."""
        if self.turn_seconds <= self.generate_seconds:
            return float(self.users)
        return self.users * self.generate_seconds / self.turn_seconds


def context_for(prompt: int, answer: int) -> int:
    """The context that a prompt and its answer need, rounded up to a step of 256."""
    return max(1, ceil((prompt + answer) / EVERY_CONTEXT)) * EVERY_CONTEXT


def about(value: float) -> str:
    """A number of conversations, never rounded silently: ``5``, ``≈5 (4.97)``, ``≈5 (4.999)``."""
    if value == int(value):
        return str(int(value))
    shown = f"{value:.2f}"
    for digits in range(3, 7):
        if float(shown) != int(float(shown)):
            break
        shown = f"{value:.{digits}f}"
    return f"≈{floor(value + 0.5)} ({shown})"


def byte_words(count: float) -> str:
    """``16.4 GB``, ``144 kB``: powers of 1000, three figures."""
    sign, count = ("-", -count) if count < 0 else ("", count)
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{sign}{count:.3g} {unit}"
        count /= 1000
    return f"{sign}{count:.4g} TB"
