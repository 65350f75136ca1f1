"""How long a step takes, from what it computes: a few numbers fitted to measured steps. Pure.

A step is a price of its own plus so much for each thing it does; none of the prices is negative. What the machine adds
at random (other programs, the server's own threads) is kept as measured over predicted, in quantiles, and drawn from
again by whoever simulates, since a p95 is made of it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict

from slotdeck.engine.telemetry.step_log import StepSample, StepWork

MIN_STEPS = 50
"""Fewer measured steps are not worth a fit."""
QUANTILES = tuple(q / 100 for q in range(101))
ROUNDS = 12
"""Of reweighting; the fit has settled long before."""


class StepModelError(ValueError):
    """Too little was measured to tell what a step costs. The message says what is missing."""


class StepModel(BaseModel):
    """Prices of a step in seconds, and the spread of what is measured around them."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    step: float
    """Each step, whatever it does."""
    decode: float
    """Each row of one token, its choice of the next token included."""
    prefill_token: float
    prefill_row: float
    """Each prompt that has a share in the step."""
    first_token: float
    """Each choice of a token at the end of a prompt."""
    decode_context: float
    """Each token of KV that decodes read."""
    prefill_context: float
    """Each token of KV that a prefill token reads."""
    spread: tuple[float, ...] = (1.0,)
    """Measured over predicted, in quantiles from lowest to highest: steps without prefill."""
    prefill_spread: tuple[float, ...] = (1.0,)
    """The same of steps with prefill."""
    samples: int = 0
    """Measured steps behind it."""

    def seconds(self, work: StepWork) -> float:
        """What such a step takes, in the middle."""
        decodes, prefill_tokens, prefill_rows, first_tokens, decode_context, prefill_context = work
        seconds = self.step + self.decode * decodes + self.decode_context * decode_context
        if prefill_rows:
            seconds += (
                self.prefill_token * prefill_tokens
                + self.prefill_row * prefill_rows
                + self.first_token * first_tokens
                + self.prefill_context * prefill_context
            )
        return seconds


@dataclass
class StepTimes:
    """Draws the length of steps: the model's price times a seeded draw from its spread."""

    model: StepModel
    seed: int = 1

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed).random

    def draw(self, work: StepWork) -> float:
        """Seconds of one step."""
        spread = self.model.prefill_spread if work.prefill_tokens else self.model.spread
        place = self._random() * (len(spread) - 1)
        below = int(place)
        ratio = spread[below]
        if below + 1 < len(spread):
            ratio += (place - below) * (spread[below + 1] - ratio)
        return self.model.seconds(work) * ratio


def fit(samples: Sequence[StepSample]) -> StepModel:
    """Least absolute relative deviations over the whole periods of steps (``between`` included), prices at least 0.

    Steps after a pause are left out. Raises StepModelError when there are fewer than :data:`MIN_STEPS`.
    """
    kept = [sample for sample in samples if sample.between is not None]
    if len(kept) < MIN_STEPS:
        raise StepModelError(f"{len(kept)} steps were measured without a pause before them, {MIN_STEPS} are needed")
    features = np.array([(1, *sample.work) for sample in kept], dtype=float)
    periods = np.array([sample.seconds + (sample.between or 0.0) for sample in kept])
    prices = _robust(features, periods)
    ratios = periods / np.maximum(features @ prices, 1e-9)
    prefill = features[:, 2] > 0
    names = ("step", "decode", "prefill_token", "prefill_row", "first_token", "decode_context", "prefill_context")
    values: dict[str, Any] = dict(zip(names, map(float, prices), strict=True))
    return StepModel(
        **values,
        spread=_spread(ratios[~prefill] if (~prefill).any() else ratios),
        prefill_spread=_spread(ratios[prefill] if prefill.any() else ratios),
        samples=len(kept),
    )


def _robust(features: np.ndarray, periods: np.ndarray) -> np.ndarray:
    """Prices at which the sum of absolute relative errors is least: reweighted least squares, so that the few steps
    in which the machine was away do not pull all others. Many steps of one kind count as much as few of another."""
    kinds = [tuple(row) for row in np.minimum(np.ceil(np.log2(features[:, [1, 2, 3]] + 1)), 12).tolist()]
    counts: dict[Any, int] = {}
    for kind in kinds:
        counts[kind] = counts.get(kind, 0) + 1
    share = np.array([1 / counts[kind] ** 0.5 for kind in kinds])
    weights = share / periods
    prices = np.zeros(features.shape[1])
    for _ in range(ROUNDS):
        prices = not_negative(features * weights[:, None], periods * weights)
        errors = np.abs(features @ prices / periods - 1)
        weights = share / periods / np.sqrt(np.maximum(errors, 0.02))
    return prices


def not_negative(features: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Least squares with no coefficient below 0: those that would be are taken out one after another."""
    scale = np.maximum(np.sqrt((features**2).sum(0)), 1e-12)
    scaled = features / scale
    used = [index for index in range(features.shape[1]) if scale[index] > 1e-12]
    found = np.zeros(features.shape[1])
    while used:
        solved = np.linalg.lstsq(scaled[:, used], values, rcond=1e-9)[0]
        if (solved >= 0).all():
            found[used] = solved
            break
        del used[int(solved.argmin())]
    return found / scale


def _spread(ratios: np.ndarray) -> tuple[float, ...]:
    return tuple(float(value) for value in np.quantile(ratios, QUANTILES))
