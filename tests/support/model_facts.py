"""Facts of real models, for tests that plan with them."""

from __future__ import annotations

from typing import Any

from slotdeck.console.advice.capacity import (
    Memory,
    ModelFacts,
)
from slotdeck.console.advice.plan import Question

EIGHT_B = ModelFacts("8B", layers=36, kv_heads=8, head_dim=128, weight_bytes=16_000_000_000)


SMOLLM2 = ModelFacts("SmolLM2-135M-Instruct", layers=30, kv_heads=3, head_dim=64, trained_context=8192)


QWEN3_8B: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": 36, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 128, "hidden_size": 4096, "intermediate_size": 12288, "vocab_size": 151936,
    "max_position_embeddings": 40960, "tie_word_embeddings": False, "sliding_window": None,
}  # fmt: skip


GPU = Memory(24_000_000_000, True, 0.92)


CHAT = Question(EIGHT_B, GPU, "bf16", users=20, generate_seconds=12, turn_seconds=90, context=8192)
