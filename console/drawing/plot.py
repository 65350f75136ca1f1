"""Plots made of block characters: one column for each value, in eighths of a row, over one or more rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from slotdeck.console.drawing.glyphs import SPARK

SampleT = TypeVar("SampleT")


@dataclass(frozen=True)
class Metric(Generic[SampleT]):
    """The value that a plot shows of each sample, and how it is drawn."""

    name: str
    value: Callable[[SampleT], float | None]
    form: Callable[[float | None], str]
    style: str
    max: float | None = None
    """Fixed upper end of the scale; ``None``: chosen for the values."""

    def known(self, samples: Iterable[SampleT]) -> list[float]:
        """The values that are known."""
        return [value for sample in samples if (value := self.value(sample)) is not None]

    def top(self, largest: float) -> float:
        """The upper end of a scale with room for ``largest``."""
        return self.max or nice_top(largest)


def column_rows(levels: Sequence[float | None], rows: int) -> list[str]:
    """Columns for levels between 0 and 1, as rows of text, the top row first. ``None`` leaves its column empty.

    Every known value gets at least one eighth, so that it does not look like missing data.
    """
    eighths = [None if level is None else max(1, min(8 * rows, round(level * 8 * rows))) for level in levels]
    result = []
    for row in range(rows - 1, -1, -1):
        column = (0 if height is None else max(0, min(8, height - 8 * row)) for height in eighths)
        result.append("".join(SPARK[part - 1] if part else " " for part in column))
    return result


def linear(values: Sequence[float | None], top: float) -> list[float | None]:
    """Heights on a scale from 0 to ``top``."""
    return [None if value is None else (value / top if top > 0 else 0.0) for value in values]


def logarithmic(values: Sequence[float | None], low: float, top: float) -> list[float | None]:
    """Heights on a scale on which each doubling is the same step, from ``low`` to ``top``; both above 0."""
    span = math.log2(top / low) if top > low else 1.0
    return [None if value is None else max(0.0, math.log2(max(value, low) / low) / span) for value in values]


def resample(
    values: Sequence[float | None], width: int, pick: Callable[[list[float]], float] = max
) -> list[float | None]:
    """At most ``width`` values: ``pick`` of those that share a cell; ``None`` where none of them is known."""
    number = len(values)
    if number <= width:
        return list(values)
    result: list[float | None] = []
    for cell in range(width):
        part = [v for v in values[cell * number // width : (cell + 1) * number // width] if v is not None]
        result.append(pick(part) if part else None)
    return result


def nice_top(value: float) -> float:
    """The smallest of 1, 2, 5 times a power of ten that is not below ``value``, so that scales rarely change."""
    if value < 1e-9:
        return 1.0
    power: float = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1.0, 2.0, 5.0, 10.0) if step * power >= value * 0.999)
