"""Rolling windows over measured samples: exact percentiles, rates. No samples give ``None``, never an old value."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def percentile(values: Sequence[float] | np.ndarray, q: float) -> float | None:
    """The exact ``q``-th percentile (0 to 100), linear between neighbours; ``None`` without values."""
    return float(np.percentile(values, q)) if len(values) else None


def percentiles(values: Sequence[float] | np.ndarray, *qs: float) -> list[float | None]:
    """Several percentiles as :func:`percentile` gives them, for little more than the price of one."""
    return [float(value) for value in np.percentile(values, qs)] if len(values) else [None] * len(qs)


class Samples:
    """Time-stamped values of the last ``horizon`` seconds, kept in two growing arrays, oldest first.

    Times must not go down. Appending is O(1) amortised; a window is a view of the tail, found by bisection.
    """

    def __init__(self, horizon: float, capacity: int = 256) -> None:
        self.horizon = horizon
        self._times = np.empty(capacity)
        self._values = np.empty(capacity)
        self._start = 0
        self._end = 0

    def append(self, time: float, value: float) -> None:
        if self._end == len(self._times):
            self._make_room(time)
        self._times[self._end] = time
        self._values[self._end] = value
        self._end += 1

    def since(self, time: float) -> np.ndarray:
        """The values stamped at or after ``time``; float64, a view that the next append may change."""
        first = self._start + int(np.searchsorted(self._times[self._start : self._end], time))
        return self._values[first : self._end]

    def _make_room(self, now: float) -> None:
        """Forget what is older than the horizon; double the arrays when that frees less than half."""
        self._start += int(np.searchsorted(self._times[self._start : self._end], now - self.horizon))
        kept = self._end - self._start
        size = len(self._times) * (2 if kept > len(self._times) // 2 else 1)
        times, values = np.empty(size), np.empty(size)
        times[:kept] = self._times[self._start : self._end]
        values[:kept] = self._values[self._start : self._end]
        self._times, self._values, self._start, self._end = times, values, 0, kept
