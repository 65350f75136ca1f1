"""What the doctor says: a finding, the thresholds that its rules share, and how they write numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from slotdeck.engine.settings import SETTINGS
from slotdeck.engine.telemetry.frame import LimitInfo

Level = Literal["warn", "critical"]
Value = int | str | bool

NOTICED_WAIT = 1.0
"""Seconds in the queue that a person notices."""
SLOW_START = 2.0
"""Seconds to the first token that a person calls slow."""
SLOW_GAP = 0.2
"""Seconds between tokens from which text comes slower than it is read."""
BORNE_WAIT = 10.0
"""Seconds in the queue that people bear, so that a place in it is better than a refusal."""
PATIENCE = 30.0
"""Seconds after which people give up and ask again."""
FEW_REQUESTS, FEW_GAPS = 5, 50
"""Samples below which a percentile says nothing."""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong."""

    rule: str
    level: Level
    what: str
    """A heading."""
    evidence: tuple[str, ...]
    """The numbers it rests on, a line each."""
    turn: str
    """What to do, short: ``slots 4 → 6``."""
    why: str
    """One sentence in plain words."""
    changes: Mapping[str, Value] = field(default_factory=dict)
    """The live settings to change together, with their new values; empty if none helps."""
    cost: float | None = None
    """Seconds of the users' time that it took in the window, all users together; ``None``: not time, but an answer."""

    before: Mapping[str, Value] = field(default_factory=dict)
    """What these settings were in the time that was judged."""

    def in_force(self, limits: LimitInfo) -> bool:
        """All that it would change is so already, or was turned further in the same direction since."""
        return bool(self.changes) and all(
            _reached(getattr(limits, name, None), self.before.get(name), to) for name, to in self.changes.items()
        )


def _reached(now: Value | None, before: Value | None, to: Value) -> bool:
    numbers = [value for value in (now, before, to) if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(numbers) < 3 or before == to:
        return now == to
    current, judged, wanted = numbers
    return current >= wanted if wanted > judged else current <= wanted


def bounded(name: str, value: int) -> int:
    """``value`` inside the bounds of a setting."""
    setting = SETTINGS[name]
    return int(min(max(value, setting.minimum or 0), value if setting.maximum is None else setting.maximum))


def power_of_two(value: float) -> int:
    """The largest power of two that is not above ``value``; 1 below that."""
    return 1 << max(0, int(value).bit_length() - 1)


def time_text(seconds: float | None) -> str:
    """``420 ms``, ``4.2 s``, ``3 min``."""
    if seconds is None:
        return "–"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 119.95 else f"{seconds / 60:.0f} min"


def cost_text(finding: Finding) -> str:
    """``costs users 95 s``; empty when it is not worth a word."""
    cost = finding.cost
    if cost is None:
        return "costs users an answer"
    if cost < 0.5:
        return ""
    return f"costs users {cost:.0f} s" if cost < 119.5 else f"costs users {cost / 60:.0f} min"


def bytes_text(count: float | None) -> str:
    """``48.0 MB``."""
    if count is None:
        return "–"
    for size, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} B"
