"""The predicted effect of a finding's change, from the recorded requests and the calibration of the engine."""

from __future__ import annotations

from collections.abc import Sequence

from slotdeck.console.advice.calibration import CalibrationError
from slotdeck.console.advice.finding import Finding
from slotdeck.console.advice.prediction import PREDICTABLE, NoPredictionError, Prediction, predict
from slotdeck.console.advice.window import Window
from slotdeck.console.bench.calibration_file import find_calibration
from slotdeck.console.sources.history import RecordedHistory
from slotdeck.engine.telemetry.frame import Frame
from slotdeck.engine.telemetry.history.reader import HistoryError


def can_be_predicted(finding: Finding) -> bool:
    """True if the finding changes a setting and its traffic is recorded. Refused requests cannot be replayed."""
    return finding.rule in PREDICTABLE and bool(finding.changes)


def prediction(frames: Sequence[Frame], finding: Finding, history: RecordedHistory) -> Prediction:
    """Predict for the frames that the finding is about. Takes seconds. Raises NoPredictionError with the reason."""
    window = Window(frames)
    try:
        calibration = find_calibration(window.newest.engine)
        ended = history.requests(window.first.time, window.last.time)
    except (CalibrationError, HistoryError) as error:
        raise NoPredictionError(str(error)) from error
    records = [record for record in ended if record.boot_id == window.last.boot_id]
    return predict(records, window.last.limits, finding.changes, calibration, window.latency)


def prediction_text(frames: Sequence[Frame], finding: Finding, history: RecordedHistory) -> str:
    """The prediction as text; ``–`` and the reason if there is none."""
    try:
        found = prediction(frames, finding, history)
    except NoPredictionError as error:
        return f"–  {error}"
    return f"{found.text}  (simulated, {found.requests} requests)"
