"""Checkpoints that store tensors in 4 bits, exactly as the int4 kernels compute with them."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from slotdeck.engine.kernels.four_bits import FourBits


@runtime_checkable
class FourBitCheckpoint(Protocol):
    """What a checkpoint offers beside :class:`slotdeck.engine.model.checkpoint.Checkpoint` if its format has 4 bits."""

    @property
    def in_four_bits(self) -> bool:
        """Whether all products of the layers are stored in 4 bits, so that int4 weights round nothing."""
        ...

    def four_bits(self, name: str) -> FourBits | None:
        """The tensor in 4 bits exactly as it is stored; None if it is stored in another type."""
        ...
