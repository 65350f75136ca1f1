"""Recorded requests as the history returns them."""

from __future__ import annotations

from typing import Any

from slotdeck.engine.telemetry.history.schema import RequestRecord

START = 1_790_000_000.0


def record(user: str, at: float, prompt: int, output: int, seconds: float = 2.0, **more: Any) -> RequestRecord:
    """A finished request that arrived ``at`` seconds after ``START`` and took ``seconds``."""
    values = {"boot_id": "b", "request_id": f"{user}{at}", "outcome": "finished"} | more
    return RequestRecord(
        user=user, ended=START + at + seconds, duration=seconds, prompt_tokens=prompt, output_tokens=output, **values
    )
