"""Rotary position embedding (Su et al., RoFormer, 2021) in the rotate-half form that Hugging Face uses."""

from __future__ import annotations

import math

import torch

from slotdeck.engine.model.config import ModelConfig


def rotary(positions: torch.Tensor, inverse_frequencies: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine for ``positions`` [T], each fp32 [T, 1, head_dim]. The first half of the sine is negated."""
    angles = positions.float()[:, None] * inverse_frequencies
    cosine, sine = angles.cos(), angles.sin()
    return torch.cat((cosine, cosine), -1)[:, None], torch.cat((-sine, sine), -1)[:, None]


def rotate(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Rotate ``x`` [T, heads, head_dim] fp32. Its halves form the pairs; a roll brings each value to its partner."""
    return torch.addcmul(x * cosine, x.roll(x.shape[-1] // 2, -1), sine)


def inverse_frequencies(config: ModelConfig, factors: torch.Tensor | None = None) -> torch.Tensor:
    """Rotary frequencies, fp32 [head_dim / 2], divided by ``factors`` if given, else scaled as the config says."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
    frequencies = 1.0 / (config.rope_theta**exponents)
    scaling = config.rope_scaling
    if factors is not None:
        return frequencies / factors
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    if scaling.kind == "llama3":
        # Long wavelengths are stretched by the factor, short ones are kept, those in between are blended.
        wavelength = 2 * math.pi / frequencies
        low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
        blend = ((scaling.original_positions / wavelength - low) / (high - low)).clamp(0, 1)
        return (1 - blend) * frequencies / scaling.factor + blend * frequencies
    return frequencies
