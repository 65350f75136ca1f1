"""The tensors of a Llama model: their names in each file format, their shapes, and the order of their rows."""

from __future__ import annotations

from collections.abc import Collection

from slotdeck.engine.model.config import ModelConfig

_LAYER_NAMES_IN_GGUF = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP_NAMES_IN_GGUF = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
    "rope_freqs.weight": "rope_freqs.weight",
}


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Shape of every tensor of a model with this config, by its Hugging Face name."""
    hidden, intermediate = config.hidden_size, config.intermediate_size
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    layer = {
        "input_layernorm": (hidden,),
        "self_attn.q_proj": (query, hidden),
        "self_attn.k_proj": (key, hidden),
        "self_attn.v_proj": (key, hidden),
        "self_attn.o_proj": (hidden, query),
        "post_attention_layernorm": (hidden,),
        "mlp.gate_proj": (intermediate, hidden),
        "mlp.up_proj": (intermediate, hidden),
        "mlp.down_proj": (hidden, intermediate),
    }
    result: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab_size, hidden)}
    for number in range(config.num_layers):
        result |= {f"model.layers.{number}.{name}.weight": shape for name, shape in layer.items()}
    result["model.norm.weight"] = (hidden,)
    if not config.tie_embeddings:
        result["lm_head.weight"] = (config.vocab_size, hidden)
    return result


def ignorable_tensors(config: ModelConfig, names: Collection[str]) -> frozenset[str]:
    """Those of ``names`` that the decoder does not need as tensors: it computes or reads the same values elsewhere."""
    return frozenset(
        name
        for name in names
        if name.endswith("rotary_emb.inv_freq")
        or name == "rope_freqs.weight"
        or (name == "lm_head.weight" and config.tie_embeddings)
    )


def hugging_face_name(name: str) -> str:
    """The Hugging Face name of a tensor in a GGUF file; the same name if there is none."""
    if name in _TOP_NAMES_IN_GGUF:
        return _TOP_NAMES_IN_GGUF[name]
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in _LAYER_NAMES_IN_GGUF:
        return f"model.layers.{parts[1]}.{_LAYER_NAMES_IN_GGUF[parts[2]]}.{parts[3]}"
    return name


def interleaved_heads(name: str, config: ModelConfig) -> int | None:
    """Number of heads of a tensor whose rows llama.cpp interleaves within each head (Q and K); None for all others."""
    if name.endswith("q_proj.weight"):
        return config.num_heads
    return config.num_kv_heads if name.endswith("k_proj.weight") else None
