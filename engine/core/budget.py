"""The prefill budget: how it is split between prompts, and how large it may be for streams to keep their ITL."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from slotdeck.engine.core.request import Request

Sample = tuple[tuple[float, float, float, float], float]
"""Features of a step, and its seconds."""

MIN_BUDGET = 16
"""Prefill never stops altogether, whatever the target."""
MAX_BUDGET = 512
"""Even with no stream to protect a step stays short enough to admit newcomers soon."""
STEPS_NEEDED = 12
"""Measured steps of a kind, with prefill or without, before a prediction of that kind is trusted."""
KEPT = 128
REFIT_EVERY = 8


@dataclass(frozen=True, slots=True)
class ItlForecast:
    """What becomes of an ITL target with the streams that run now."""

    budget: int
    """Prefill tokens of a step."""
    outlook: Literal["kept", "floor", "unreachable"]
    """``floor``: decoding alone keeps it, but not beside the least prefill; ``unreachable``: not even that."""
    seconds: float
    """What 19 of 20 steps will stay within: with that prefill, or when unreachable without any."""


def split_budget(prefills: Sequence[Request], budget: int) -> dict[str, int]:
    """Prefill tokens per request id: three quarters to the oldest, one quarter to the shortest, the rest by age.

    So a short prompt is not stuck behind a long one, and many equal prompts do not all finish last. ``prefills`` are
    ordered by first admission. The sum is at most ``budget``, and is ``budget`` when there is that much to do.
    """
    remaining = {request.id: request.num_tokens - request.num_computed_tokens for request in prefills}
    counts = dict.fromkeys(remaining, 0)
    if not prefills:
        return counts
    shortest = min(prefills, key=lambda request: remaining[request.id])
    if shortest is not prefills[0]:
        counts[shortest.id] = min(remaining[shortest.id], budget // 4)
    left = budget - counts[shortest.id]
    for request in prefills:
        share = min(remaining[request.id] - counts[request.id], left)
        counts[request.id] += share
        left -= share
    return counts


class StepCost:
    """Seconds of a step as a linear function of its work, fitted to the last measured steps by least squares.

    Features: 1, decodes, prefill tokens, thousands of tokens of context read; none may make a step shorter. Steps with
    and without prefill are kept apart, so that an hour of mere decoding does not forget what prefill costs.
    """

    def __init__(self) -> None:
        self._samples: tuple[deque[Sample], deque[Sample]] = (deque(maxlen=KEPT), deque(maxlen=KEPT))
        self._weights = (0.0, 0.0, 0.0, 0.0)
        self._margins = (0.0, 0.0)
        """By which 19 of 20 steps exceed the fit at most: those without and those with prefill."""
        self._stale = 0
        self.num_steps = 0

    def observe(self, decodes: int, prefill_tokens: int, context_tokens: int, seconds: float) -> None:
        """One measured step."""
        features = (1.0, float(decodes), float(prefill_tokens), context_tokens / 1000)
        self._samples[prefill_tokens > 0].append((features, seconds))
        self.num_steps += 1
        self._stale += 1

    def predict(self, decodes: int, prefill_tokens: int, context_tokens: int) -> float:
        """Seconds that such a step takes on average."""
        self._refit()
        return _dot(self._weights, (1.0, float(decodes), float(prefill_tokens), context_tokens / 1000))

    def forecast_itl(self, target: float, decodes: int, context_tokens: int, prefilled: int = 0) -> ItlForecast | None:
        """The most prefill tokens with which 19 of 20 steps stay within ``target`` seconds, never below the floor.

        ``context_tokens`` is what the decodes read, ``prefilled`` what the prefill reads beside its own chunk. ``None``
        until enough steps were measured: that a target is unreachable is known from mere decoding, a budget is not.
        """
        if max(map(len, self._samples)) < STEPS_NEEDED:
            return None
        decoding = self.predict(decodes, 0, context_tokens)
        alone = decoding + self._margins[False]
        if alone > target:
            return ItlForecast(MIN_BUDGET, "unreachable", alone)
        if len(self._samples[True]) < STEPS_NEEDED:
            return None
        per_token = self._weights[2]
        beside = decoding + self._weights[3] * prefilled / 1000 + self._margins[True]
        if beside + MIN_BUDGET * per_token > target:
            return ItlForecast(MIN_BUDGET, "floor", beside + MIN_BUDGET * per_token)
        budget = min(MAX_BUDGET, int((target - beside) / per_token)) if per_token > 0 else MAX_BUDGET
        return ItlForecast(budget, "kept", beside + budget * per_token)

    def _refit(self) -> None:
        if self._stale < REFIT_EVERY and self.num_steps > STEPS_NEEDED:
            return
        self._stale = 0
        samples = [*self._samples[False], *self._samples[True]]
        used = [0, 1, 2, 3]
        while used:
            solved = _least_squares(samples, used)
            if all(weight >= 0 for weight in solved) or len(used) == 1:
                break
            used.remove(used[min(range(len(used)), key=solved.__getitem__)])
        weights = [0.0] * 4
        for index, weight in zip(used, solved, strict=True):
            weights[index] = max(0.0, weight)
        self._weights = (weights[0], weights[1], weights[2], weights[3])
        alone, beside = (self._margin(steps) for steps in self._samples)
        self._margins = ((beside or 0.0) if alone is None else alone, beside or 0.0)

    def _margin(self, samples: Sequence[Sample]) -> float | None:
        errors = sorted(seconds - _dot(self._weights, features) for features, seconds in samples)
        return max(0.0, errors[int(0.95 * (len(errors) - 1))]) if errors else None


def _dot(weights: Sequence[float], features: Sequence[float]) -> float:
    return sum(weight * value for weight, value in zip(weights, features, strict=True))


def _least_squares(samples: Sequence[Sample], used: Sequence[int]) -> list[float]:
    """Weights of the ``used`` features: normal equations, a whisker of ridge, Gaussian elimination."""
    size = len(used)
    rows = [[1e-6 * (i == j) for j in range(size)] + [0.0] for i in range(size)]
    for features, seconds in samples:
        x = [features[index] for index in used]
        for i in range(size):
            for j in range(size):
                rows[i][j] += x[i] * x[j]
            rows[i][size] += x[i] * seconds
    for i in range(size):
        pivot = max(range(i, size), key=lambda row: abs(rows[row][i]))
        rows[i], rows[pivot] = rows[pivot], rows[i]
        for row in range(i + 1, size):
            factor = rows[row][i] / rows[i][i]
            rows[row] = [value - factor * above for value, above in zip(rows[row], rows[i], strict=True)]
    solution = [0.0] * size
    for i in reversed(range(size)):
        known = sum(rows[i][j] * solution[j] for j in range(i + 1, size))
        solution[i] = (rows[i][size] - known) / rows[i][i]
    return solution
