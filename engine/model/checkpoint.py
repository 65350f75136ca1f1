"""The contract of a checkpoint: where weights come from, whatever the file format."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import torch

from slotdeck.engine.model.config import ModelConfig
from slotdeck.engine.model.errors import ModelError

_MAX_LISTED = 8
"""Names listed in one message."""


class Checkpoint(Protocol):
    """The tensors of a model by their Hugging Face names."""

    config: ModelConfig

    @property
    def files(self) -> list[Path]:
        """The files that the model is read from. If one of them changes, it is another model."""
        ...

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every tensor in the files, rows first."""
        ...

    @property
    def largest_tensor(self) -> int:
        """Number of values in the largest tensor."""
        ...

    def get(self, name: str) -> torch.Tensor:
        """The tensor in floating point, as it is stored or dequantised. Safe to call from several threads."""
        ...

    def rows(self, name: str, first: int, count: int) -> torch.Tensor:
        """``count`` rows from ``first`` on (fewer at the end) of a tensor, without reading the others.

        Not for Q and K, whose rows a file may store in another order.
        """
        ...

    def rope_factors(self) -> torch.Tensor | None:
        """Divisors of the rotary frequencies, fp32 [head_dim / 2]; None if the config alone defines them."""
        ...


def check_tensors(checkpoint: Checkpoint, expected: Mapping[str, tuple[int, ...]], ignorable: frozenset[str]) -> None:
    """Compare the tensors of a checkpoint with the ``expected`` shapes by name.

    Names in ``ignorable`` may be there and are not read. Raises ModelError that lists all differences: missing tensors,
    wrong shapes, and tensors that the decoder would silently ignore.
    """
    shapes = checkpoint.shapes
    problems: list[str] = []
    absent = sorted(name for name in expected if name not in shapes)
    if absent:
        problems.append(f"missing: {listed(absent)}")
    wrong = [
        f"{name} {shapes[name]} instead of {shape}"
        for name, shape in expected.items()
        if name in shapes and shapes[name] != shape
    ]
    if wrong:
        problems.append(f"wrong shape: {listed(wrong)}")
    unknown = sorted(name for name in shapes if name not in expected and name not in ignorable)
    if unknown:
        problems.append(f"not part of a supported model: {listed(unknown)}")
    if problems:
        raise ModelError(f"{checkpoint.config.id}: the weights do not fit the config; {'; '.join(problems)}")


def listed(names: list[str]) -> str:
    """The first names, and how many more there are."""
    shown = ", ".join(names[:_MAX_LISTED])
    return shown if len(names) <= _MAX_LISTED else f"{shown} and {len(names) - _MAX_LISTED} more"
