"""The predicted effect of a finding's change: the recorded requests are replayed in the simulator.

They are also replayed under the settings that were in force. Comparing that with what was measured shows whether the
simulator can be trusted for this traffic. It also makes both sides of a prediction comparable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slotdeck.console.advice.calibration import Calibration
from slotdeck.console.advice.finding import MIN_REQUESTS
from slotdeck.console.advice.recorded import replay
from slotdeck.console.advice.simulation_result import SimulationResult
from slotdeck.console.advice.units import time_text
from slotdeck.engine.settings import LiveSettings
from slotdeck.engine.telemetry.frame import LimitInfo, WindowInfo
from slotdeck.engine.telemetry.history.schema import RequestRecord

PREDICTABLE = ("queue", "preemption", "prefill", "decode", "budget")
"""Rules whose traffic is recorded completely. Requests that were refused or given up cannot be replayed."""
MAX_TOKENS = 20_000
"""Output tokens of the newest requests that are replayed at most; more would take many seconds to simulate."""
MAX_ERROR_FACTOR = 1.5
"""The simulation of the past may differ from the measurement by this factor in either direction."""
MAX_ERROR_SECONDS = 0.05
"""A smaller difference is always accepted."""


class NoPredictionError(ValueError):
    """Nothing can be predicted. The message says why."""


@dataclass(frozen=True)
class PredictedMetrics:
    """The result of one simulation; ``None`` without samples. Times are in seconds."""

    ttft_p95: float | None
    itl_p95: float | None
    generated_per_second: float | None
    preemptions: int

    @classmethod
    def of(cls, result: SimulationResult) -> PredictedMetrics:
        """The numbers that a comparison shows."""
        return cls(result.ttft_p95, result.itl_p95, result.tokens_per_second, result.preemptions)


@dataclass(frozen=True)
class Prediction:
    """The recorded requests under the settings that were in force (``now``), and after the change (``then``)."""

    now: PredictedMetrics
    then: PredictedMetrics
    requests: int

    @property
    def text(self) -> str:
        """``TTFT p95 4.1 s → 1.2 s, ITL p95 35 ms → 41 ms, tok/s 88 → 140``."""
        now, then = self.now, self.then
        parts = [
            f"TTFT p95 {time_text(now.ttft_p95)} → {time_text(then.ttft_p95)}",
            f"ITL p95 {time_text(now.itl_p95)} → {time_text(then.itl_p95)}",
            f"tok/s {now.generated_per_second or 0:.0f} → {then.generated_per_second or 0:.0f}",
        ]
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
    """Predict the effect of ``changes``.

    ``records`` are the recorded requests, oldest first; ``measured`` is what the engine measured for them. Raises
    NoPredictionError.
    """
    replayed = _newest(records)
    if len(replayed) < MIN_REQUESTS:
        raise NoPredictionError(f"only {len(replayed)} requests are recorded")
    before, after = _settings(limits, {}), _settings(limits, changes)
    now = PredictedMetrics.of(replay(replayed, before, calibration))
    for name, simulated, actual in (
        ("TTFT", now.ttft_p95, measured.ttft_p95),
        ("ITL", now.itl_p95, measured.itl_p95),
    ):
        if not _close(simulated, actual):
            raise NoPredictionError(
                f"the simulator computes a {name} p95 of {time_text(simulated)}, but {time_text(actual)} was measured; "
                "the calibration may be out of date, or other programs may keep the machine busy"
            )
    return Prediction(now, PredictedMetrics.of(replay(replayed, after, calibration)), len(replayed))


def _newest(records: Sequence[RequestRecord]) -> list[RequestRecord]:
    """The newest requests that can be replayed, up to :data:`MAX_TOKENS`, oldest first."""
    known = [record for record in records if record.duration is not None and record.output_tokens]
    tokens, number = 0, 0
    for record in reversed(known):
        tokens += record.output_tokens or 0
        if tokens > MAX_TOKENS:
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
        raise NoPredictionError("this server does not report its settings")
    return settings


def _close(simulated: float | None, actual: float | None) -> bool:
    if simulated is None or actual is None:
        return simulated is actual
    low, high = sorted((simulated, actual))
    return high - low < MAX_ERROR_SECONDS or high <= MAX_ERROR_FACTOR * low
