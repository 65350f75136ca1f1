"""The engine process: owns the model, schedules, serves. Never imports textual."""

__version__ = "0.1.0"
