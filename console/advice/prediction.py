"""What a finding's change would have done: the requests that were recorded are sent again, to the simulator.

The settings that were in force are simulated too. What that says beside what was measured tells whether the simulator
can be believed about this traffic, and both sides of a prediction are then of the same kind. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slotdeck.console.advice.calibration import Calibration
from slotdeck.console.advice.finding import FEW_REQUESTS, time_text
from slotdeck.console.advice.outcome import Outcome
from slotdeck.console.advice.recorded import replay
from slotdeck.engine.settings import LiveSettings
from slotdeck.engine.telemetry.frame import LimitInfo, WindowInfo
from slotdeck.engine.telemetry.history.schema import RequestRecord

PREDICTABLE = ("queue", "preemption", "prefill", "decode", "budget")
"""Rules whose traffic is recorded whole: what was refused or gave up is not, and cannot be sent again."""
MAX_TOKENS = 20_000
"""Tokens written by the requests that are sent again, the newest ones; more would take many seconds to simulate."""
BELIEVED = 1.5
"""The simulation of what was may differ from what was measured by this factor, each way."""
NOTICEABLE = 0.05
"""Seconds below which such a difference is none."""


class NoPredictionError(ValueError):
    """Nothing can be predicted. The message says why."""


@dataclass(frozen=True)
class Expected:
    """What one simulation says; ``None``: nothing was sampled."""

    ttft_p95: float | None
    itl_p95: float | None
    generated_per_second: float | None
    preemptions: int

    @classmethod
    def of(cls, outcome: Outcome) -> Expected:
        """The numbers that a comparison shows."""
        return cls(outcome.ttft_p95, outcome.itl_p95, outcome.tokens_per_second, outcome.preemptions)


@dataclass(frozen=True)
class Prediction:
    """The recorded requests under the settings that were in force, and under those that a finding names."""

    now: Expected
    then: Expected
    requests: int

    @property
    def words(self) -> str:
        """``TTFT p95 4.1 s → 1.2 s, ITL p95 35 ms → 41 ms, tok/s 88 → 140``."""
        now, then = self.now, self.then
        parts = [f"TTFT p95 {time_text(now.ttft_p95)} → {time_text(then.ttft_p95)}",
                 f"ITL p95 {time_text(now.itl_p95)} → {time_text(then.itl_p95)}",
                 f"tok/s {now.generated_per_second or 0:.0f} → {then.generated_per_second or 0:.0f}"]  # fmt: skip
        if now.preemptions or then.preemptions:
            parts.append(f"preempted {now.preemptions} → {then.preemptions}")
        return ", ".join(parts)


def predict(
    records: Sequence[RequestRecord],
    limits: LimitInfo,
    changes: Mapping[str, Any],
    calibration: Calibration,
    measured: WindowInfo,
) -> Prediction:
    """``measured`` is what the records were really like. Raises NoPredictionError."""
    sent = _newest(records)
    if len(sent) < FEW_REQUESTS:
        raise NoPredictionError(f"only {len(sent)} requests are recorded")
    before, after = _settings(limits, {}), _settings(limits, changes)
    now = Expected.of(replay(sent, before, calibration))
    for name, said, was in (
        ("TTFT", now.ttft_p95, measured.ttft_p95),
        ("ITL", now.itl_p95, measured.itl_p95),
    ):
        if not _near(said, was):
            raise NoPredictionError(
                f"the simulator says {name} p95 {time_text(said)} where {time_text(was)} was measured; "
                "the calibration may be old, or the machine busy with other work"
            )
    return Prediction(now, Expected.of(replay(sent, after, calibration)), len(sent))


def _newest(records: Sequence[RequestRecord]) -> list[RequestRecord]:
    """Those that can be sent again, as many of the newest as are not too much work; ``records`` are oldest first."""
    known = [record for record in records if record.duration is not None and record.output_tokens]
    written, number = 0, 0
    for record in reversed(known):
        written += record.output_tokens or 0
        if written > MAX_TOKENS:
            break
        number += 1
    return known[len(known) - number :]


def _settings(limits: LimitInfo, changes: Mapping[str, Any]) -> LiveSettings:
    values = {name: getattr(limits, name) for name in LiveSettings.model_fields} | dict(changes)
    try:
        settings = LiveSettings.model_validate({name: value for name, value in values.items() if value is not None})
    except ValueError as error:
        raise NoPredictionError("the engine would refuse these settings") from error
    if any(values[name] is None for name in ("slots", "context", "queue", "budget", "kv_tokens")):
        raise NoPredictionError("this server does not tell its settings")
    return settings


def _near(said: float | None, was: float | None) -> bool:
    if said is None or was is None:
        return said is was
    low, high = sorted((said, was))
    return high - low < NOTICEABLE or high <= BELIEVED * low
