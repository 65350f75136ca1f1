"""The last steps: what each computed and how long it took. A calibration is fitted to them. No text, no ids."""

from __future__ import annotations

import threading
from collections import deque
from itertools import islice
from typing import Any, NamedTuple

from slotdeck.engine.core.step import SchedulerOutput

MAX_STEPS = 4096
"""Steps that are kept: twenty seconds on the fastest machine, minutes on a slow one."""


class StepWork(NamedTuple):
    """The work of one step, as far as its duration depends on it."""

    decodes: int
    """Rows of one token each."""
    prefill_tokens: int
    prefill_rows: int
    first_tokens: int
    """Prefill rows that reach the end of their prompt, so that a token is sampled."""
    decode_context: int
    """Tokens of KV that all decodes read together."""
    prefill_context: int
    """Tokens of KV that all prefill tokens read together."""


class StepSample(NamedTuple):
    """One measured step. Times in seconds on the engine's clock."""

    work: StepWork
    ended: float
    seconds: float
    """From the end of planning to the end of committing."""
    between: float | None
    """From the end of the step before to the start of this one: planning, delivering outputs, and delays by the server
    and the machine. ``None`` if the engine may have been idle in between."""


def work_of(plan: SchedulerOutput) -> StepWork:
    """The work of a plan. Simulations call it in every step too, so it makes a single pass over the rows."""
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
    """Telemetry adds each step; any thread may read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._steps: deque[StepSample] = deque(maxlen=MAX_STEPS)
        self._ended: float | None = None
        self.count = 0
        """Number of steps ever logged: the cursor of a reader that has seen them all."""

    def on_step(self, plan: SchedulerOutput, seconds: float, now: float) -> None:
        """A step was committed at ``now``."""
        between = None if self._ended is None else max(0.0, now - seconds - self._ended)
        sample = StepSample(work_of(plan), now, seconds, between)
        with self._lock:
            self._steps.append(sample)
            self.count += 1
        # Only a request that goes on after the step is sure to give the engine work at once.
        self._ended = now if any(not row.request.state.ended for row in plan.rows) else None

    def since(self, cursor: int) -> tuple[list[StepSample], int]:
        """The steps after the first ``cursor`` ones, as far as they are still kept, and the new cursor."""
        with self._lock:
            count = max(0, min(self.count - cursor, len(self._steps)))
            newest = list(islice(reversed(self._steps), count))
            return newest[::-1], self.count


def read_samples(rows: Any) -> list[StepSample]:
    """Samples from decoded JSON. Raises ValueError if the JSON is something else."""
    try:
        return [StepSample(StepWork(*map(int, work)), *times) for work, *times in rows]
    except TypeError as error:
        raise ValueError("these are no measured steps of this version of Slotdeck") from error
