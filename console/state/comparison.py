"""What a change of settings did: the 60 s before it and the 60 s after it. Pure; it is fed with every frame.

Changes within a minute of each other make one comparison, from before the first to after the last of them.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from math import ceil

from slotdeck.console.drawing.formats import gap, rate, seconds, whole
from slotdeck.console.state.time_series import changed_settings
from slotdeck.engine.telemetry.frame import Frame, LimitInfo

SECONDS = 60.0
"""Length of the windows before and after; it is that of the engine's exact percentiles."""
MIN_FIRST_TOKENS, MIN_GAPS = 5, 50
"""Samples that a percentile needs on each side."""
SHOWN_SECONDS = 180.0
"""How long a finished comparison is shown."""
MAX_HOLE = 5.0
"""Seconds without frames after which the last frame cannot stand for the time before a change."""


@dataclass(frozen=True)
class Side:
    """The minute before or after a change; ``None`` is unknown."""

    ttft_p95: float | None
    ttft_count: int
    itl_p95: float | None
    itl_count: int
    generated: float | None
    """Tokens per second."""
    preemptions: int | None

    @property
    def enough_first_tokens(self) -> bool:
        return self.ttft_p95 is not None and self.ttft_count >= MIN_FIRST_TOKENS

    @property
    def enough_gaps(self) -> bool:
        return self.itl_p95 is not None and self.itl_count >= MIN_GAPS


@dataclass(frozen=True)
class Comparison:
    """A change with the minutes before and after it. ``after`` is ``None`` until the minute after it has passed."""

    words: str
    """The changes: ``slots 4→8, budget 64→128``."""
    began: float
    """Wall clock of the last change."""
    before: Side
    after: Side | None = None
    left: int = 0
    """Seconds until the comparison is complete."""

    @property
    def enough(self) -> bool:
        """There are enough samples on both sides for at least one percentile."""
        after = self.after
        if after is None:
            return False
        first_tokens = self.before.enough_first_tokens and after.enough_first_tokens
        return first_tokens or (self.before.enough_gaps and after.enough_gaps)


def describe(comparison: Comparison) -> str:
    """The result as one line of the event log."""
    before, after = comparison.before, comparison.after
    if after is None or not comparison.enough:
        return f"{comparison.words}: not enough traffic to compare before and after"
    parts = []
    if before.enough_first_tokens and after.enough_first_tokens:
        parts.append(f"TTFT p95 {seconds(before.ttft_p95)}→{seconds(after.ttft_p95)}")
    if before.enough_gaps and after.enough_gaps:
        parts.append(f"ITL p95 {gap(before.itl_p95)}→{gap(after.itl_p95)}")
        parts.append(f"tok/s {rate(before.generated)}→{rate(after.generated)}")
    if before.preemptions or after.preemptions:
        parts.append(f"preempted {whole(before.preemptions)}→{whole(after.preemptions)}")
    return f"{comparison.words}, 60 s before and after: {', '.join(parts)}"


class Comparer:
    """Watches the settings and the engine's windows. :attr:`comparison` is the newest comparison."""

    def __init__(self) -> None:
        self.comparison: Comparison | None = None
        self.finished: Comparison | None = None
        """Set in the one call of :meth:`add` in which a comparison became complete."""
        self._preemptions: deque[tuple[float, int]] = deque()
        self._last: Frame | None = None
        self._first_limits: LimitInfo | None = None
        """The settings in force before the changes that are being compared."""

    def restart(self) -> None:
        """Another engine sends the frames now. It cannot be compared with the one before."""
        self.comparison, self._last, self._first_limits = None, None, None
        self._preemptions.clear()

    def add(self, frame: Frame) -> None:
        """Take a frame."""
        last, self._last, self.finished = self._last, frame, None
        if last is not None and frame.limits.revision != last.limits.revision:
            self._changed(last, frame)
        self._remember(frame)
        current = self.comparison
        if current is None:
            return
        passed = frame.time - current.began
        if current.after is not None or passed < 0:
            if passed < 0 or passed >= SECONDS + SHOWN_SECONDS:
                self.comparison = None
        elif passed >= SECONDS:
            self.comparison = self.finished = replace(current, after=self._side(frame), left=0)
        elif (left := ceil(SECONDS - passed)) != current.left:
            self.comparison = replace(current, left=left)

    def _changed(self, last: Frame, frame: Frame) -> None:
        current = self.comparison
        running = current is not None and current.after is None
        if not running or self._first_limits is None:
            self._first_limits = last.limits
        words = ", ".join(changed_settings(self._first_limits, frame.limits))
        if not words:  # all of it was taken back
            self.comparison = None
        elif running and current is not None:
            self.comparison = replace(current, words=words, began=frame.time, left=int(SECONDS))
        elif frame.time - last.time <= MAX_HOLE:
            self.comparison = Comparison(words, frame.time, self._side(last), left=int(SECONDS))
        else:
            self.comparison = None

    def _remember(self, frame: Frame) -> None:
        total = frame.counters.preemptions
        if total is None:
            return
        known = self._preemptions
        if known and frame.time < known[-1][0]:
            known.clear()
        if not known or frame.time - known[-1][0] >= 1:
            known.append((frame.time, total))
        while len(known) > 1 and known[1][0] <= frame.time - SECONDS:
            known.popleft()

    def _side(self, frame: Frame) -> Side:
        minute, total = frame.minute, frame.counters.preemptions
        known = self._preemptions
        return Side(
            ttft_p95=minute.ttft_p95,
            ttft_count=minute.ttft_count,
            itl_p95=minute.itl_p95,
            itl_count=minute.itl_count,
            generated=minute.generated_per_second,
            preemptions=max(0, total - known[0][1]) if known and total is not None else None,
        )
