"""Which type the weights get on this machine, and why: int8 and int4 on the native kernels, bf16 and fp32 in torch."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from slotdeck.engine.kernels.build import BuildError
from slotdeck.engine.kernels.library import Kernels
from slotdeck.engine.kernels.packed import WEIGHT_BITS
from slotdeck.engine.model.errors import UsageError
from slotdeck.engine.model.hardware import choose_dtype, cpu_has_amx, physical_cores

PORTABLE = "portable"
FASTER_IN_FOUR_BITS = {"avx2"}
"""Instruction sets for which int4 was measured to be faster than int8, for one user and for many."""


@dataclass(frozen=True)
class WeightChoice:
    """A type of weights."""

    weights: str
    """"int8", "int4", "fp32" or "bf16"."""
    reason: str
    """One sentence for the admin."""
    kernels: Kernels | None = None
    """What computes int8 and int4 weights; None for torch."""


def choose_weights(name: str, device: torch.device, in_four_bits: bool = False) -> WeightChoice:
    """Choose the type of the weights. ``name`` is a type, or "auto".

    "auto" takes the fastest type that answers as well as fp32. ``in_four_bits`` says that int4 does so, because the
    model's file has the same 4-bit grid. If the kernels cannot be built, torch computes in its own best type, and the
    reason says so. Raises UsageError for another name, and for int8 and int4 on a GPU.
    """
    if name in WEIGHT_BITS and device.type != "cpu":
        raise UsageError(f"{name} weights are computed on the CPU only; on {device} use --weights bf16 or fp32.")
    if name not in ("auto", *WEIGHT_BITS) or device.type != "cpu":
        return WeightChoice(*choose_dtype(name, device))
    torch_type, torch_reason = choose_dtype("auto", device)
    try:
        kernels = Kernels(physical_cores())
    except BuildError as error:
        reason = error if name == "auto" else f"{name} was asked for, but {error}"
        return WeightChoice(torch_type, f"Weights are {torch_type}, computed by torch: {reason}.")
    chosen = kernels.instruction_set
    if name in WEIGHT_BITS:
        return WeightChoice(name, f"Weights are {name}, as asked, computed by native kernels for {chosen}.", kernels)
    # Nothing is timed at start: a busy moment would change the answers from one start to the next.
    if chosen in FASTER_IN_FOUR_BITS and in_four_bits:
        reason = f"Weights are int4, exactly as in the model's file, on native kernels for {chosen}."
        return WeightChoice("int4", reason, kernels)
    if chosen != PORTABLE and not cpu_has_amx():
        reason = f"Weights are int8: native kernels for {chosen} are the fastest here."
        return WeightChoice("int8", reason, kernels)
    kernels.close()
    return WeightChoice(torch_type, torch_reason)
