"""Plots of blocks: one column of eighths for each value, over one or more rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from slotdeck.console.drawing.glyphs import SPARK

SampleT = TypeVar("SampleT")


@dataclass(frozen=True)
class Metric(Generic[SampleT]):
    """What one plot shows of each sample, and how."""

    name: str
    value: Callable[[SampleT], float | None]
    form: Callable[[float | None], str]
    style: str
    most: float | None = None
    """Fixed end of the scale."""

    def known(self, samples: Iterable[SampleT]) -> list[float]:
        """The values of those that have one."""
        return [value for sample in samples if (value := self.value(sample)) is not None]

    def top(self, largest: float) -> float:
        """End of a scale that has room for ``largest``."""
        return self.most or nice_top(largest)


def column_rows(levels: Sequence[float | None], rows: int) -> list[str]:
    """Columns from heights between 0 and 1, the top row first; ``None`` leaves its column empty.

    Whatever is known gets at least the lowest eighth, so that nothing looks like a gap in the data.
    """
    eighths = [None if level is None else max(1, min(8 * rows, round(level * 8 * rows))) for level in levels]
    result = []
    for row in range(rows - 1, -1, -1):
        width = (0 if height is None else max(0, min(8, height - 8 * row)) for height in eighths)
        result.append("".join(SPARK[cell - 1] if cell else " " for cell in width))
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
