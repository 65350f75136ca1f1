"""The speed that `slotdeck bench --calibrate` measured for one request alone: prefill and decode."""

from __future__ import annotations

from slotdeck.console.advice.calibration import Calibration, CalibrationError
from slotdeck.console.advice.capacity import ModelFacts, Speed
from slotdeck.console.bench.calibration_file import find_calibration, newest_calibration
from slotdeck.engine.telemetry.frame import EngineInfo


def speed_of_engine(engine: EngineInfo) -> Speed | None:
    """The speed of a running engine; ``None`` if it was not measured. Reads a file."""
    calibration = calibration_of_engine(engine)
    return _speed(calibration) if isinstance(calibration, Calibration) else None


def calibration_of_engine(engine: EngineInfo) -> Calibration | str:
    """The calibration of a running engine, or a sentence that says how to make one. Reads a file."""
    try:
        return find_calibration(engine)
    except CalibrationError as error:
        return str(error)


def speed_of_model(model: ModelFacts, kv_dtype: str) -> Speed | None:
    """The speed of a model that is not running, if the newest calibration is for the same model and types."""
    try:
        calibration = newest_calibration()
    except CalibrationError:
        return None
    same = (calibration.model, calibration.weights, calibration.kv_dtype) == (model.name, model.weights, kv_dtype)
    return _speed(calibration) if same else None


def _speed(calibration: Calibration) -> Speed:
    return Speed(prefill=calibration.prefill_per_second, decode=calibration.decode_per_second)
