"""The last steps as what they computed and how long that took: what a calibration is fitted to. No text, no ids."""

from __future__ import annotations

import threading
from collections import deque
from itertools import islice
from typing import Any, NamedTuple

from slotdeck.engine.core.step import SchedulerOutput

MAX_STEPS = 4096
"""Steps kept: twenty seconds of the fastest machine, minutes of a slow one."""


class StepWork(NamedTuple):
    """What one step computes, as far as its length depends on it."""

    decodes: int
    """Rows of one token each."""
    prefill_tokens: int
    prefill_rows: int
    first_tokens: int
    """Prefill rows that end their prompt, so that a token is chosen."""
    decode_context: int
    """Tokens of KV that the decodes read, added."""
    prefill_context: int
    """Tokens of KV that each prefill token reads, added over all of them."""


class StepSample(NamedTuple):
    """One measured step. Times in seconds on the engine's clock."""

    work: StepWork
    ended: float
    seconds: float
    """From the end of planning to the end of committing."""
    between: float | None
    """From the end of the step before to the beginning of this one: planning, handing over, and what the server and
    the machine took meanwhile. ``None`` when the engine may have had nothing to do in between."""


def work_of(plan: SchedulerOutput) -> StepWork:
    """What a plan is about to compute. Called in every step, also of simulations: one pass over the rows."""
    decodes = plan.num_decodes
    decode_context = tokens = context = firsts = 0
    for place, row in enumerate(plan.rows):
        if place < decodes:
            decode_context += row.start
        else:
            tokens += row.count
            context += row.count * (2 * row.start + row.count + 1) // 2
            firsts += row.samples
    return StepWork(decodes, tokens, len(plan.rows) - decodes, firsts, decode_context, context)


class StepLog:
    """Fed by telemetry once a step; may be read from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._steps: deque[StepSample] = deque(maxlen=MAX_STEPS)
        self._ended: float | None = None
        self.count = 0
        """Steps ever logged; the cursor of a reader that has seen them all."""

    def on_step(self, plan: SchedulerOutput, seconds: float, now: float) -> None:
        """A step was committed at ``now``."""
        between = None if self._ended is None else max(0.0, now - seconds - self._ended)
        sample = StepSample(work_of(plan), now, seconds, between)
        with self._lock:
            self._steps.append(sample)
            self.count += 1
        # Only what outlives its step is sure to be continued at once.
        self._ended = now if any(not row.request.state.ended for row in plan.rows) else None

    def since(self, cursor: int) -> tuple[list[StepSample], int]:
        """The steps after the first ``cursor`` ones, as far as they are kept, and the new cursor."""
        with self._lock:
            count = max(0, min(self.count - cursor, len(self._steps)))
            newest = list(islice(reversed(self._steps), count))
            return newest[::-1], self.count


def read_samples(rows: Any) -> list[StepSample]:
    """Samples as they come out of JSON. Raises ValueError when they are none."""
    try:
        return [StepSample(StepWork(*map(int, work)), *times) for work, *times in rows]
    except TypeError as error:
        raise ValueError("these are no measured steps of this version of Slotdeck") from error
