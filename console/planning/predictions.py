"""The effect that the simulator predicts for a finding's change, from what the engine recorded and its calibration."""

from __future__ import annotations

from collections.abc import Sequence

from slotdeck.console.advice.calibration import CalibrationError
from slotdeck.console.advice.finding import Finding
from slotdeck.console.advice.prediction import PREDICTABLE, NoPredictionError, Prediction, predict
from slotdeck.console.advice.window import Window
from slotdeck.console.bench.calibration_file import find_calibration
from slotdeck.engine.paths import history_path
from slotdeck.engine.telemetry.frame import Frame
from slotdeck.engine.telemetry.history.reader import History, HistoryError


def can_be_predicted(finding: Finding) -> bool:
    """The simulator has a say in it: what was refused, or never came, is not recorded and cannot be sent again."""
    return finding.rule in PREDICTABLE and bool(finding.changes)


def prediction(frames: Sequence[Frame], finding: Finding) -> Prediction:
    """For the window that ``finding`` was made from. Takes seconds. Raises NoPredictionError, which says why not."""
    window = Window(frames)
    try:
        calibration = find_calibration(window.newest.engine)
        ended = History(history_path()).requests(window.first.time, window.last.time)
    except (CalibrationError, HistoryError) as error:
        raise NoPredictionError(str(error)) from error
    records = [record for record in ended if record.boot_id == window.last.boot_id]
    return predict(records, window.last.limits, finding.changes, calibration, window.latency)


def in_words(frames: Sequence[Frame], finding: Finding) -> str:
    """As the page shows it; with ``–`` and the reason when there is none."""
    try:
        found = prediction(frames, finding)
    except NoPredictionError as error:
        return f"–  {error}"
    return f"{found.words}  (simulated, {found.requests} requests)"
