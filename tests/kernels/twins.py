"""What the kernels must compute, written in torch.

Rows of activations and weights are rounded to int8 by groups of 64 along the depth (weights of 4 bits by 32); the
products are exact in integers and added in fp32. The rest of a step is the engine's own torch decoder, given these
products.
"""

from __future__ import annotations

import numpy as np
import torch

from slotdeck.engine.kernels.four_bits import place, quantised
from slotdeck.engine.kernels.library import Kernels
from slotdeck.engine.kernels.packed import BLOCK, GROUP, PANEL, Packed, empty, pad
from slotdeck.engine.model.linear import Linear
from slotdeck.engine.model.llama.torch_decoder import TorchDecoder
from slotdeck.engine.model.llama.weights import DecoderWeights, LayerWeights
from slotdeck.engine.model.torch_attention import TorchAttention

SMALL = 1e-30
"""A group whose largest value is below this counts as zero."""


def grouped(x: torch.Tensor) -> torch.Tensor:
    """[rows, depth] as [rows, groups, 64], padded with zeros."""
    rows, depth = x.shape
    return torch.nn.functional.pad(x, (0, pad(depth, GROUP) - depth)).view(rows, -1, GROUP)


def quantise_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes, fp32 [rows, groups, 64], and scales [rows, groups, 1] of activations."""
    groups = grouped(x.float())
    largest = groups.abs().amax(-1, keepdim=True)
    inverse = torch.where(largest > SMALL, torch.tensor(127.0) / largest, torch.tensor(0.0))
    return (groups * inverse).round(), largest / 127


def undecided(x: torch.Tensor) -> torch.Tensor:
    """Rows, bool [rows], with a value so near the middle between two codes that either is right: a processor that
    multiplies and adds at once rounds once, another one twice."""
    groups = grouped(x.double())
    scaled = groups * 127 / groups.abs().amax(-1, keepdim=True).clamp(min=SMALL)
    return ((scaled - scaled.floor() - 0.5).abs() < 2.0**-15).flatten(1).any(1)


def quantise_weights(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The same for weights; their scales are rounded up to bf16, so that no code exceeds 127."""
    groups = grouped(weight.float())
    largest = groups.abs().amax(-1, keepdim=True)
    bits = (largest / 127).view(torch.int32)
    scale = torch.where(largest > SMALL, (bits + 0xFFFF) & ~0xFFFF, 0).view(torch.float32)
    inverse = torch.where(scale > 0, 1 / scale, 0.0)
    return (groups * inverse).round(), scale


def rounded_rows(x: torch.Tensor) -> torch.Tensor:
    """Activations as the product sees them, fp32 [rows, padded depth]."""
    codes, scales = quantise_rows(x)
    return (codes * scales).flatten(1)


def rounded_weights(weight: torch.Tensor) -> torch.Tensor:
    codes, scales = quantise_weights(weight)
    return (codes * scales).flatten(1)


def unpack(packed: Packed) -> torch.Tensor:
    """Weights of a packed product, fp32 [columns, depth]."""
    codes = torch.from_numpy(packed.codes.astype(np.float32) - 128)
    scales = torch.from_numpy((packed.scales.astype(np.uint32) << 16).view(np.float32))
    weights = codes.permute(0, 2, 1, 3).reshape(packed.columns, packed.depth)
    return weights * scales.permute(0, 2, 1).reshape(packed.columns, -1).repeat_interleave(GROUP, 1)


def unpack_four_bits(packed: Packed) -> torch.Tensor:
    """Weights of a packed product of 4 bits, fp32 [columns, depth], read as native/types.h says."""
    panels, groups, _ = packed.codes.shape
    codes = torch.zeros(panels, PANEL, groups, BLOCK)
    halves = torch.from_numpy(packed.codes[:, :, :256].astype(np.float32)).view(panels, groups, 4, PANEL, 4)
    for eight in range(4):
        for at in range(4):
            both = halves[:, :, eight, :, at].transpose(1, 2)
            codes[..., eight * 8 + at] = both % 16
            codes[..., eight * 8 + 4 + at] = (both / 16).floor()
    ends = np.ascontiguousarray(packed.codes[:, :, 256:]).view(np.float16).astype(np.float32)
    steps, minima = torch.from_numpy(ends).view(panels, groups, 2, PANEL).permute(2, 0, 3, 1)[..., None]
    return (codes * steps + minima).view(packed.columns, packed.depth)


def pack(kernels: Kernels, weight: torch.Tensor, bits: int = 8) -> Packed:
    packed = empty(*weight.shape, bits)
    if bits == 4:
        place(quantised(weight.numpy()), packed)
        return packed
    kernels.pack(weight.contiguous().numpy(), packed, 0)
    return packed


def int8_linear(weight: torch.Tensor) -> Linear:
    rounded = rounded_weights(weight)
    return lambda x: rounded_rows(x) @ rounded.T


def four_bit_linear(weight: torch.Tensor) -> Linear:
    rounded = torch.from_numpy(quantised(weight.contiguous().numpy()).values())
    rounded = torch.nn.functional.pad(rounded, (0, -rounded.shape[1] % GROUP))
    return lambda x: rounded_rows(x) @ rounded.T


def rounded_decoder(exact: TorchDecoder, weights_of: dict[str, torch.Tensor], weights: str) -> TorchDecoder:
    """The torch decoder with products of int8 or int4 (``weights``) in place of ``exact``'s; the head's are int8.

    ``weights_of`` holds the weights by name.
    """
    linear = {"int8": int8_linear, "int4": four_bit_linear}[weights]

    def get(*names: str) -> torch.Tensor:
        return torch.cat([weights_of[f"{name}.weight"].float() for name in names])

    layers = []
    for number, layer in enumerate(exact.weights.layers):
        attention, mlp = f"model.layers.{number}.self_attn", f"model.layers.{number}.mlp"
        layers.append(
            LayerWeights(
                input_norm=layer.input_norm,
                qkv=linear(get(f"{attention}.q_proj", f"{attention}.k_proj", f"{attention}.v_proj")),
                output=linear(get(f"{attention}.o_proj")),
                mlp_norm=layer.mlp_norm,
                gate_up=linear(get(f"{mlp}.gate_proj", f"{mlp}.up_proj")),
                down=linear(get(f"{mlp}.down_proj")),
            )
        )
    head = "lm_head" if "lm_head.weight" in weights_of else "model.embed_tokens"
    rounded = DecoderWeights(
        embedding=exact.weights.embedding.bfloat16().float(),
        layers=tuple(layers),
        norm=exact.weights.norm,
        head=int8_linear(get(head)),
        inverse_frequencies=exact.weights.inverse_frequencies,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    return TorchDecoder(exact.config, rounded, TorchAttention(torch.device("cpu"), exact.config.sliding_window))
