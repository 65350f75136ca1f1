"""How long a step takes, depending on what it computes: a linear model that is fitted to measured steps.

A step costs a fixed time plus a time for each unit of work; no coefficient is negative. Random delays (other programs,
the server's own threads) are kept as quantiles of measured / predicted. The simulator draws from them, because they
determine every p95.
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
"""Measured steps that a fit needs."""
QUANTILES = tuple(q / 100 for q in range(101))
ROUNDS = 12
"""Rounds of reweighting. The fit converges long before."""


class StepModelError(ValueError):
    """Too few steps were measured for a fit. The message says how many are needed."""


class StepModel(BaseModel):
    """The coefficients in seconds, and the spread of measured steps around the prediction."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    step: float
    """For each step, whatever it computes."""
    decode: float
    """For each request that decodes one token, sampling included."""
    prefill_token: float
    """For each prompt token that is computed."""
    prefill_row: float
    """For each request with prompt tokens in the step."""
    first_token: float
    """For each first token that is sampled at the end of a prompt."""
    decode_context: float
    """For each token of KV that decoding requests read."""
    prefill_context: float
    """For each token of KV that a prompt token reads."""
    spread: tuple[float, ...] = (1.0,)
    """Quantiles of measured / predicted for steps without prefill, from lowest to highest."""
    prefill_spread: tuple[float, ...] = (1.0,)
    """The same for steps with prefill."""
    samples: int = 0
    """Number of measured steps behind the fit."""

    def seconds(self, work: StepWork) -> float:
        """The predicted duration of a step, without random delays."""
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
    """Draws durations of steps: the model's prediction times a seeded draw from its spread."""

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
    """Fit the model with least absolute relative deviations and coefficients of at least 0.

    The fitted time of a step begins when the previous step ended. Steps after a pause are left out. Raises
    StepModelError if fewer than :data:`MIN_STEPS` are left.
    """
    kept = [sample for sample in samples if sample.between is not None]
    if len(kept) < MIN_STEPS:
        raise StepModelError(
            f"only {len(kept)} steps without a pause before them were measured; {MIN_STEPS} are needed"
        )
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
    """Coefficients with the least sum of absolute relative errors, by iteratively reweighted least squares.

    A few steps that were delayed by other programs therefore have little influence. Frequent kinds of steps get a
    smaller weight per step, so that rare kinds count too.
    """
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
    """Least squares with coefficients of at least 0. The most negative one is set to 0 until none is left."""
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
