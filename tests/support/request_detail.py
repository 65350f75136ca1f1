"""The detail of one request of a real run."""

from __future__ import annotations

from pathlib import Path

from slotdeck.engine.telemetry.requests.detail import (
    RequestDetail,
)

RECORDED = RequestDetail.model_validate_json(
    (Path(__file__).parents[1] / "recordings" / "request-detail.json").read_text("utf-8")
)
"""A request of a real run that waited, was preempted once and finished."""
