"""The sizes of a model: the numbers that decoders, the KV pool and the memory arithmetic need. No torch."""

from __future__ import annotations

from dataclasses import dataclass

from slotdeck.engine.core import kv_memory
from slotdeck.engine.model.errors import ModelError

SUPPORTED_ROPE = ("default", "linear", "llama3")


@dataclass(frozen=True)
class RopeScaling:
    """How rotary frequencies are scaled. ``kind`` is one of SUPPORTED_ROPE. The last three fields are for llama3."""

    kind: str = "default"
    factor: float = 1.0
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    original_positions: int = 8192


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of a decoder, and what its family needs to compute exactly."""

    id: str
    architecture: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_positions: int
    """Trained context in tokens. The engine serves no larger context."""
    rope_theta: float
    rope_scaling: RopeScaling
    rms_norm_eps: float
    tie_embeddings: bool
    stop_token_ids: frozenset[int]
    sliding_window: int | None = None
    """Number of newest tokens that a query sees in every layer, its own included; None: all."""

    def __post_init__(self) -> None:
        for name in ("num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_dim", "intermediate_size"):
            if getattr(self, name) < 1:
                raise ModelError(f"{self.id}: {name} must be at least 1, not {getattr(self, name)}")
        if self.vocab_size < 1 or self.max_positions < 1:
            raise ModelError(f"{self.id}: vocabulary and trained context must not be empty")
        if self.num_heads % self.num_kv_heads:
            raise ModelError(
                f"{self.id}: {self.num_heads} heads cannot share {self.num_kv_heads} key-value heads evenly"
            )
        if self.head_dim % 2:
            raise ModelError(f"{self.id}: head_dim must be even, not {self.head_dim}")
        if self.sliding_window is not None and self.sliding_window < 1:
            raise ModelError(f"{self.id}: sliding_window must be at least 1, not {self.sliding_window}")

    def kv_bytes_per_token(self, kv_dtype: str) -> int:
        """Bytes of K and V of one token in all layers, without scales; see :mod:`slotdeck.engine.core.kv_memory`."""
        return kv_memory.kv_bytes_per_token(self.num_layers, self.num_kv_heads, self.head_dim, kv_dtype)

    def scale_bytes_per_token(self, kv_dtype: str) -> int:
        """Bytes of the scales of one token in all layers; 0 unless ``kv_dtype`` is int8."""
        return kv_memory.scale_bytes_per_token(self.num_layers, self.num_kv_heads, kv_dtype)

    def token_bytes(self, kv_dtype: str) -> int:
        """Bytes that one token takes in the KV pool: K, V and scales."""
        return self.kv_bytes_per_token(kv_dtype) + self.scale_bytes_per_token(kv_dtype)

    @property
    def num_parameters(self) -> int:
        """Number of weights. A tied embedding counts once."""
        attention = self.hidden_size * self.head_dim * (2 * self.num_heads + 2 * self.num_kv_heads)
        layer = attention + 3 * self.hidden_size * self.intermediate_size + 2 * self.hidden_size
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tie_embeddings else 2)
        return self.num_layers * layer + embeddings + self.hidden_size
