"""The decoder of the Llama family, lean: plain functions over fused weights.

At this size the overhead of a module tree would cost more than the matrix products, so a step is one loop over layers
with about twenty tensor operations each: Q, K and V are one product, gate and up another. Residuals, norms and rotary
embedding are computed in 32 bit, whatever the weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F

from slotdeck.engine.kernels.library import Draw
from slotdeck.engine.model.attention import AttentionLayout, Span, attention_for, build_layout
from slotdeck.engine.model.config import ModelConfig
from slotdeck.engine.model.kv_store import KVStore
from slotdeck.engine.model.linear import Linear


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. Norm weights are fp32 [hidden]; products as in :data:`slotdeck.engine.model.linear.Linear`."""

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
    head: Linear
    inverse_frequencies: torch.Tensor
    """fp32 [head_dim / 2], scaling applied."""
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True, slots=True)
class Batch:
    """A flat batch: T tokens of any number of sequences. Plain numbers; each decoder puts them where it computes."""

    token_ids: Sequence[int]
    """[T]"""
    positions: Sequence[int]
    """[T]"""
    slots: Sequence[int]
    """[T]: where K and V go in the pool, block x 16 + offset."""
    layout: Any
    """What the decoder's ``lay_out`` made."""
    logit_rows: Sequence[int]
    """[R]: tokens whose logits are needed."""
    best_rows: Sequence[int] = ()
    """[B]: tokens whose best next token alone is needed; empty unless the decoder ``chooses``."""
    draws: Sequence[Draw] = ()
    """[D]: tokens after which one is to be drawn; empty unless the decoder ``chooses``."""


@dataclass(frozen=True, slots=True)
class Output:
    """What a step computed."""

    logits: torch.Tensor
    """fp32 [R, vocab]"""
    finite: np.ndarray
    """bool [T]: whether all that was computed for a token is finite."""
    best: list[int]
    """B token ids, the first of the largest logit; -1 where a logit is not finite."""
    drawn: list[int]
    """D token ids; -1 where a logit is not finite."""


class StepDecoder(Protocol):
    """What the runner asks of a decoder."""

    config: ModelConfig
    chooses: bool
    """Whether it chooses tokens itself, where that depends on nothing but logits and how to draw."""
    kv_dtype: torch.dtype
    """Type of the KV pool that suits it."""

    @property
    def path(self) -> str: ...

    def set_threads(self, threads: int) -> None: ...

    def lay_out(self, spans: Sequence[Span], store: KVStore) -> Any: ...

    def forward(self, batch: Batch, store: KVStore) -> Output: ...

    def part_seconds(self) -> dict[str, float]:
        """What each part of ``forward`` has taken so far; empty where that is not measured. Any thread may ask."""
        ...


class Decoder:
    """Computes a flat batch. Not thread-safe: one step at a time."""

    chooses = False

    def __init__(self, config: ModelConfig, weights: DecoderWeights) -> None:
        self.config = config
        self.weights = weights
        self.kv_dtype = weights.dtype
        self._attention = attention_for(weights.device)

    @property
    def path(self) -> str:
        """What computes, in a word."""
        return "torch"

    def set_threads(self, threads: int) -> None:
        """Compute with so many threads; the number holds for the whole process."""
        torch.set_num_threads(threads)

    def lay_out(self, spans: Sequence[Span], store: KVStore) -> AttentionLayout:
        """Lay out one step; see :func:`slotdeck.engine.model.attention.build_layout`."""
        return build_layout(spans, store, self.weights.device, self.config.sliding_window)

    def forward(self, batch: Batch, store: KVStore) -> Output:
        """Run one step and write its K and V into ``store``."""
        config, weights = self.config, self.weights
        hidden_size, eps, dtype = config.hidden_size, config.rms_norm_eps, weights.dtype
        heads, kv_heads, width = config.num_heads, config.num_kv_heads, config.head_dim
        inner = config.intermediate_size
        tokens = len(batch.token_ids)
        cosine, sine = rotary(self._on_device(batch.positions), weights.inverse_frequencies)
        token_rows = store.token_rows(self._on_device(batch.slots))
        hidden = F.embedding(self._on_device(batch.token_ids), weights.embedding).float()
        mixed = torch.empty(tokens, heads * width, dtype=dtype, device=hidden.device)
        mixed_by_head = mixed.view(tokens, heads, width)
        shape = (hidden_size,)
        for number, layer in enumerate(weights.layers):
            normed = F.rms_norm(hidden, shape, layer.input_norm, eps).to(dtype)
            qkv = layer.qkv(normed).view(tokens, heads + 2 * kv_heads, width)
            turned = rotate(qkv[:, : heads + kv_heads].float(), cosine, sine)
            store.write(number, token_rows, turned[:, heads:], qkv[:, heads + kv_heads :])
            self._attention(turned[:, :heads], store, number, batch.layout, mixed_by_head)
            hidden += layer.output(mixed)
            normed = F.rms_norm(hidden, shape, layer.mlp_norm, eps).to(dtype)
            gate_up = layer.gate_up(normed)
            hidden += layer.down(F.silu(gate_up[:, :inner]).mul_(gate_up[:, inner:]))
        rows = hidden.index_select(0, self._on_device(batch.logit_rows))
        logits = weights.head(F.rms_norm(rows, shape, weights.norm, eps).to(dtype))
        # A value that is not finite stays in its token's residual, so the last one tells.
        return Output(logits.float(), torch.isfinite(hidden).all(-1).cpu().numpy(), [], [])

    def part_seconds(self) -> dict[str, float]:
        return {}

    def _on_device(self, numbers: Sequence[int]) -> torch.Tensor:
        """int64 [len(numbers)]. By way of numpy, which is several times as fast at this as torch.tensor."""
        return torch.from_numpy(np.array(numbers, np.int64)).to(self.weights.device)


def rotary(positions: torch.Tensor, inverse_frequencies: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine for ``positions`` [T], each fp32 [T, 1, head_dim]; the sine's first half is negated."""
    angles = positions.float()[:, None] * inverse_frequencies
    cosine, sine = angles.cos(), angles.sin()
    return torch.cat((cosine, cosine), -1)[:, None], torch.cat((-sine, sine), -1)[:, None]


def rotate(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of ``x`` [T, heads, head_dim] fp32: halves are pairs; a roll brings each to its partner."""
    return torch.addcmul(x * cosine, x.roll(x.shape[-1] // 2, -1), sine)


def inverse_frequencies(config: ModelConfig, factors: torch.Tensor | None = None) -> torch.Tensor:
    """Rotary frequencies, fp32 [head_dim / 2], with the config's scaling, or divided by ``factors`` if given."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
    frequencies = 1.0 / (config.rope_theta**exponents)
    scaling = config.rope_scaling
    if factors is not None:
        return frequencies / factors
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    if scaling.kind == "llama3":
        # Long waves are stretched by the factor, short ones kept, those between blended.
        wavelength = 2 * math.pi / frequencies
        low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
        blend = ((scaling.original_positions / wavelength - low) / (high - low)).clamp(0, 1)
        return (1 - blend) * frequencies / scaling.factor + blend * frequencies
    return frequencies
