"""Calibrations as files in the state folder: one for each model, weight type, KV type, device and number of threads."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from slotdeck.console.advice.calibration import CALIBRATION_VERSION, Calibration, CalibrationError, calibration_key
from slotdeck.engine.paths import state_folder
from slotdeck.engine.telemetry.frame import EngineInfo


def calibrations_folder() -> Path:
    return state_folder() / "calibrations"


def save_calibration(calibration: Calibration) -> Path:
    """Write it, replacing an earlier one with the same key. Raises OSError."""
    folder = calibrations_folder()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / f"{calibration.key}.json"
    path.write_text(calibration.model_dump_json(indent=2) + "\n", "utf-8")
    return path


def read_calibration(path: Path) -> Calibration:
    """Raises CalibrationError."""
    try:
        calibration = Calibration.model_validate_json(path.read_bytes())
    except OSError as error:
        raise CalibrationError(f"{path}: {error.strerror or error}") from error
    except ValidationError as error:
        raise CalibrationError(f"{path} is not a calibration; run `slotdeck bench --calibrate` to make one") from error
    if calibration.version != CALIBRATION_VERSION:
        raise CalibrationError(f"another version of Slotdeck wrote {path}; run `slotdeck bench --calibrate` again")
    return calibration


def find_calibration(engine: EngineInfo) -> Calibration:
    """The calibration for an engine as it runs now. Raises CalibrationError."""
    parts = (engine.model, engine.weights, engine.kv_dtype, engine.device, engine.threads)
    model, weights, kv_dtype, device, threads = parts
    if model is None or weights is None or kv_dtype is None or device is None or threads is None:
        raise CalibrationError("this server does not report its model and device, so it has no calibration")
    path = calibrations_folder() / f"{calibration_key(model, weights, kv_dtype, device, threads)}.json"
    if not path.is_file():
        raise CalibrationError(
            f"the speed of {model} ({weights}, KV {kv_dtype}, {device}, {threads} threads) has not been measured yet: "
            "run `slotdeck bench --calibrate`"
        )
    return read_calibration(path)


def newest_calibration() -> Calibration:
    """The calibration that was measured last. Raises CalibrationError if there is none."""
    calibrations = []
    for path in calibrations_folder().glob("*.json"):
        try:
            calibrations.append(read_calibration(path))
        except CalibrationError:
            continue
    if not calibrations:
        raise CalibrationError("no speed has been measured yet: run `slotdeck bench --calibrate`")
    return max(calibrations, key=lambda calibration: calibration.measured)
