"""The weights of a Llama decoder in torch, read from a checkpoint, fused and converted."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch

from slotdeck.engine.model.checkpoint import Checkpoint
from slotdeck.engine.model.linear import Linear, make_linear
from slotdeck.engine.model.llama.rotary import inverse_frequencies


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. Norm weights are fp32 [hidden]; products are of type :data:`slotdeck.engine.model.linear.Linear`."""

    input_norm: torch.Tensor
    qkv: Linear
    output: Linear
    mlp_norm: torch.Tensor
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """All weights of a model, ready to multiply."""

    embedding: torch.Tensor
    """[vocab, hidden] in the type of the weights."""
    layers: tuple[LayerWeights, ...]
    norm: torch.Tensor
    """fp32 [hidden]"""
    head: Linear
    inverse_frequencies: torch.Tensor
    """fp32 [head_dim / 2], scaling applied."""
    dtype: torch.dtype
    device: torch.device


def read_weights(checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device, workers: int) -> DecoderWeights:
    """Read, fuse and convert all weights, several layers at a time in ``workers`` threads."""
    config = checkpoint.config

    def get(*names: str) -> torch.Tensor:
        parts = [checkpoint.get(f"{name}.weight") for name in names]
        return (parts[0] if len(parts) == 1 else torch.cat(parts)).to(device=device, dtype=dtype)

    def norm(name: str) -> torch.Tensor:
        return checkpoint.get(f"{name}.weight").to(device=device, dtype=torch.float32)

    def layer(number: int) -> LayerWeights:
        prefix = f"model.layers.{number}"
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        with torch.inference_mode():  # the mode belongs to a thread
            return LayerWeights(
                input_norm=norm(f"{prefix}.input_layernorm"),
                qkv=make_linear(get(f"{attention}.q_proj", f"{attention}.k_proj", f"{attention}.v_proj")),
                output=make_linear(get(f"{attention}.o_proj")),
                mlp_norm=norm(f"{prefix}.post_attention_layernorm"),
                gate_up=make_linear(get(f"{mlp}.gate_proj", f"{mlp}.up_proj")),
                down=make_linear(get(f"{mlp}.down_proj")),
            )

    with ThreadPoolExecutor(workers) as pool:
        layers = pool.map(layer, range(config.num_layers))
        embedding = get("model.embed_tokens")
        head = embedding if config.tie_embeddings else get("lm_head")
        return DecoderWeights(
            embedding=embedding,
            layers=tuple(layers),
            norm=norm("model.norm"),
            head=make_linear(head),
            inverse_frequencies=inverse_frequencies(config, checkpoint.rope_factors()).to(device),
            dtype=dtype,
            device=device,
        )
