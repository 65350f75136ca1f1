"""The calibration: what one model costs on one machine, as `slotdeck bench --calibrate` measured it there."""

from __future__ import annotations

import re

from pydantic import BaseModel, ConfigDict

from slotdeck.console.advice.step_model import StepModel
from slotdeck.console.advice.traffic import Edge

CALIBRATION_VERSION = 1
MAX_OTHERS = 0.25
"""Cores. If other programs kept more than this busy, the measurement describes them more than the engine."""


class CalibrationError(RuntimeError):
    """The engine has no calibration, or its file cannot be read. The message says what to do."""


class Limit(BaseModel):
    """How much of a machine's capacity was used, both per second."""

    model_config = ConfigDict(frozen=True)

    used: float
    most: float
    """The most that the machine can do, measured in the same run."""

    @property
    def share(self) -> float:
        """The part that was used, 0 to 1."""
        return self.used / self.most if self.most > 0 else 0.0


class Wording(BaseModel):
    """How many prompt tokens some words become.

    A prompt of one message has ``base`` + words x ``per_word`` tokens. Each further message adds ``per_message``.
    """

    model_config = ConfigDict(frozen=True)

    base: float
    per_word: float
    per_message: float

    def words(self, tokens: int, *, fresh: bool) -> int:
        """How many words a message needs to add ``tokens`` to the prompt; ``fresh`` if it is the first message."""
        return max(1, round((tokens - (self.base if fresh else self.per_message)) / self.per_word))


class Calibration(BaseModel):
    """What was measured. Rates are in tokens per second, times in seconds."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    version: int = CALIBRATION_VERSION
    measured: float
    """Wall clock, seconds since the epoch."""
    machine: dict[str, str | int | float | None] = {}
    others: float = 0.0
    """Cores that other programs kept busy while the served steps were measured."""
    model: str
    weights: str
    kv_dtype: str
    device: str
    threads: int
    kernels: str
    weight_bytes: int
    kv_bytes_per_token: int
    prefill_chunk: int
    """Tokens in each step of the measured prefill."""
    prefill_per_second: float
    """One prompt alone, without a server."""
    decode_per_second: float
    """One stream alone, without a server."""
    memory: Limit
    """Bytes per second that the decoding of a single stream reads, and that the memory can deliver."""
    arithmetic: Limit
    """Operations per second of prefill, and of one large matrix product."""
    overhead: float
    """Part of the time from step to step of one served stream in which the model computes nothing: 0 to 1."""
    kv_copy_bytes_per_second: float
    """From the device to host memory, one way."""
    alone: StepModel
    """Steps without a server."""
    served: StepModel
    """Steps under load, each from the end of the previous step, with the server and its clients on this machine."""
    edge: Edge
    wording: Wording

    @property
    def key(self) -> str:
        return calibration_key(self.model, self.weights, self.kv_dtype, self.device, self.threads)


def calibration_key(model: str, weights: str, kv_dtype: str, device: str, threads: int) -> str:
    """The name of the calibration's file, without its suffix."""
    text = f"{model}-{weights}-kv-{kv_dtype}-{device}-{threads}t"
    return re.sub(r"[^A-Za-z0-9._-]+", "_", text)


def busy_warning(calibration: Calibration) -> str | None:
    """A sentence if the machine was busy with other programs; ``None`` if it was quiet."""
    if calibration.others <= MAX_OTHERS:
        return None
    return (
        f"other programs kept {calibration.others:.1f} cores busy during the calibration, so its predictions are for a "
        "machine that is equally busy; calibrate again when the machine is quiet"
    )


def bottlenecks(calibration: Calibration) -> list[str]:
    """One sentence for decode and one for prefill: what limits it, and how close it is to that limit."""
    memory, arithmetic = calibration.memory, calibration.arithmetic
    decode = (
        f"decode: one stream reads {memory.used / 1e9:.1f} of the {memory.most / 1e9:.1f} GB/s that the memory can "
        f"deliver ({memory.share:.0%}); {calibration.overhead:.1%} of a served step is overhead outside the model"
    )
    if calibration.overhead > 0.5:
        decode += ": overhead is the bottleneck, so a faster machine would help little"
    elif memory.share >= 0.5:
        decode += ": memory bandwidth is the bottleneck, so a second stream in the same step costs little"
    else:
        decode += ": arithmetic is the bottleneck, so each further stream costs its full share"
    prefill = (
        f"prefill: {arithmetic.used / 1e9:.0f} of {arithmetic.most / 1e9:.0f} billion operations per second "
        f"({arithmetic.share:.0%} of what one large matrix product reaches)"
    )
    prefill += (
        ": arithmetic is the bottleneck, so more cores would help"
        if arithmetic.share >= 0.5
        else ": attention and small chunks take the rest"
    )
    return [decode, prefill]
