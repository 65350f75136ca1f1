"""Rolling windows over measured samples, and exact percentiles. Without samples both give ``None``."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

CHUNK = 4096
"""Samples in one array of :class:`Samples`."""


def percentile(values: Sequence[float] | np.ndarray, q: float) -> float | None:
    """The exact ``q``-th percentile (0 to 100), linear between neighbours; ``None`` without values."""
    return float(np.percentile(values, q)) if len(values) else None


def percentiles(values: Sequence[float] | np.ndarray, *qs: float) -> list[float | None]:
    """Several percentiles as :func:`percentile` gives them, for little more than the price of one."""
    return [float(value) for value in np.percentile(values, qs)] if len(values) else [None] * len(qs)


class Samples:
    """Time-stamped values of the last ``horizon`` seconds and a little more, in a queue of fixed-size arrays.

    Times must not go down. Neither method copies samples, so both are quick however many there are. The caller holds
    a lock during each call, but may read what :meth:`since` gave without it.
    """

    def __init__(self, horizon: float) -> None:
        self.horizon = horizon
        self._chunks: deque[tuple[np.ndarray, np.ndarray]] = deque()
        self._end = CHUNK
        """Samples in the newest chunk."""

    def append(self, time: float, value: float) -> None:
        """Add one sample; now and then also forget arrays that are older than the horizon."""
        if self._end == CHUNK:
            self._chunks.append((np.empty(CHUNK), np.empty(CHUNK)))
            self._end = 0
            while self._chunks[0][0][-1] < time - self.horizon and len(self._chunks) > 1:
                self._chunks.popleft()
        times, values = self._chunks[-1]
        times[self._end], values[self._end] = time, value
        self._end += 1

    def since(self, time: float) -> list[np.ndarray]:
        """The values stamped at or after ``time``, oldest first, as float64 arrays that never change any more."""
        found: list[np.ndarray] = []
        end = self._end
        for times, values in reversed(self._chunks):
            first = int(np.searchsorted(times[:end], time))
            found.append(values[first:end])
            if first:
                break
            end = CHUNK
        return found[::-1]


def joined(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """What :meth:`Samples.since` gave, as one array."""
    return np.concatenate(arrays) if arrays else np.empty(0)
