"""A finding of the doctor, and the thresholds that its rules share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from slotdeck.engine.settings import SETTINGS
from slotdeck.engine.telemetry.frame import LimitInfo

Level = Literal["warn", "critical"]
Value = int | str | bool

NOTICEABLE_WAIT = 1.0
"""Seconds in the queue that a person notices."""
SLOW_TTFT = 2.0
"""Seconds to the first token that a person calls slow."""
SLOW_ITL = 0.2
"""Seconds between tokens from which text appears more slowly than people read."""
ACCEPTABLE_WAIT = 10.0
"""Seconds in the queue that people accept rather than be refused."""
GIVE_UP_SECONDS = 30.0
"""Seconds after which people give up and send their request again."""
MIN_REQUESTS, MIN_GAPS = 5, 50
"""Samples that a percentile needs to mean anything."""


@dataclass(frozen=True)
class Finding:
    """One problem."""

    rule: str
    level: Level
    title: str
    evidence: tuple[str, ...]
    """The numbers behind it, one line each."""
    remedy: str
    """What to do, in a few words: ``slots 4 → 6``."""
    explanation: str
    """One sentence in plain words."""
    changes: Mapping[str, Value] = field(default_factory=dict)
    """The live settings to change together, with their new values; empty if no setting helps."""
    cost: float | None = None
    """Seconds that all users together lost in the window. ``None`` if they lost an answer instead of time."""

    before: Mapping[str, Value] = field(default_factory=dict)
    """The values of these settings during the time that was examined."""

    def in_force(self, limits: LimitInfo) -> bool:
        """True if every change has been made since, or has been exceeded in the same direction."""
        return bool(self.changes) and all(
            _reached(getattr(limits, name, None), self.before.get(name), wanted)
            for name, wanted in self.changes.items()
        )


def _reached(now: Value | None, before: Value | None, wanted: Value) -> bool:
    """Whether ``now`` is ``wanted`` or beyond it, as seen from ``before``."""
    numbers = [
        value for value in (now, before, wanted) if isinstance(value, int | float) and not isinstance(value, bool)
    ]
    if len(numbers) < 3 or before == wanted:
        return now == wanted
    current, earlier, target = numbers
    return current >= target if target > earlier else current <= target


def bounded(name: str, value: int) -> int:
    """``value``, limited to the range of the setting ``name``."""
    setting = SETTINGS[name]
    return int(min(max(value, setting.minimum or 0), value if setting.maximum is None else setting.maximum))


def power_of_two(value: float) -> int:
    """The largest power of two that is at most ``value``; 1 for anything below 1."""
    return 1 << max(0, int(value).bit_length() - 1)


def cost_text(finding: Finding) -> str:
    """``costs users 95 s``; empty if the cost is negligible."""
    cost = finding.cost
    if cost is None:
        return "costs users an answer"
    if cost < 0.5:
        return ""
    return f"costs users {cost:.0f} s" if cost < 119.5 else f"costs users {cost / 60:.0f} min"
