"""The speed that `slotdeck bench --calibrate` measured, for plans: one stream alone, reading and writing apart."""

from __future__ import annotations

from slotdeck.console.advice.calibration import Calibration, CalibrationError
from slotdeck.console.advice.capacity import ModelFacts, Speed
from slotdeck.console.bench.calibration_file import find_calibration, newest_calibration
from slotdeck.engine.telemetry.frame import EngineInfo


def speed_of_engine(engine: EngineInfo) -> Speed | None:
    """Of an engine as it runs; ``None`` if it was not measured. Reads a file."""
    calibration = calibration_of_engine(engine)
    return _speed(calibration) if isinstance(calibration, Calibration) else None


def calibration_of_engine(engine: EngineInfo) -> Calibration | str:
    """All that was measured of an engine as it runs, or what to do to have it. Reads a file."""
    try:
        return find_calibration(engine)
    except CalibrationError as error:
        return str(error)


def speed_of_model(model: ModelFacts, kv_dtype: str) -> Speed | None:
    """Of a model that does not run, if what was measured last here was the same with the same types."""
    try:
        calibration = newest_calibration()
    except CalibrationError:
        return None
    same = (calibration.model, calibration.weights, calibration.kv_dtype) == (model.name, model.weights, kv_dtype)
    return _speed(calibration) if same else None


def _speed(calibration: Calibration) -> Speed:
    return Speed(prefill=calibration.prefill_per_second, decode=calibration.decode_per_second)
