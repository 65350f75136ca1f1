"""How much memory the KV cache takes and how many tokens fit into it. Pure arithmetic.

Loading, the KV pool and the planner all use these functions, so that they never disagree by a byte. Every quantity is
a number of bytes or tokens.
"""

from __future__ import annotations

from slotdeck.engine.settings import BLOCK_SIZE

KV_VALUE_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "int8": 1}
"""Bytes of one stored value of K or V, by the data type of the KV pool."""
SCALE_BYTES = 4
"""Bytes of one scale (fp32). An int8 pool has one scale for K and one for V per token, layer and KV head."""


def kv_bytes_per_token(layers: int, kv_heads: int, head_dim: int, kv_dtype: str) -> int:
    """Bytes of K and V of one token in all layers, without scales. ``kv_dtype`` is a key of KV_VALUE_BYTES."""
    return 2 * layers * kv_heads * head_dim * KV_VALUE_BYTES[kv_dtype]


def scale_bytes_per_token(layers: int, kv_heads: int, kv_dtype: str) -> int:
    """Bytes of the scales of one token in all layers; 0 unless ``kv_dtype`` is int8."""
    return 2 * layers * kv_heads * SCALE_BYTES if kv_dtype == "int8" else 0


def tokens_that_fit(free_bytes: int, bytes_per_token: int) -> int:
    """The largest number of tokens, in whole blocks, that takes at most ``free_bytes``.

    ``bytes_per_token`` includes the scales.
    """
    return max(0, free_bytes) // (bytes_per_token * BLOCK_SIZE) * BLOCK_SIZE
