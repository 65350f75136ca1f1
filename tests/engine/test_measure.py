"""What a calibration begins with: real steps of the real model, small ones here."""

from __future__ import annotations

import json
from typing import Any

import pytest

from slotdeck.engine import measure as measuring
from slotdeck.engine.configuration import load_settings
from slotdeck.engine.measure import measure
from slotdeck.engine.telemetry.step_log import StepWork

pytestmark = pytest.mark.model


def test_steps_and_limits_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    small: dict[str, Any] = {"REPEATS": 1, "DECODES": (1, 2), "PREFILLS": (16,), "CONTEXTS": (64,), "PROMPT": 64,
                             "READ_BYTES": 4 << 20, "FACTOR": 256, "POOL_TOKENS": 2048}  # fmt: skip
    for name, value in small.items():
        monkeypatch.setattr(measuring, name, value)
    said: list[str] = []
    facts = json.loads(json.dumps(measure(load_settings({}), said.append)))
    assert len(said) == 4
    assert (facts["model"], facts["device"]) == ("SmolLM2-135M-Instruct", "cpu")
    works = [StepWork(*work) for work, _ in facts["steps"]]
    assert StepWork(2, 0, 0, 0, 128, 0) in works
    assert StepWork(0, 16, 1, 0, 0, sum(range(65, 81))) in works
    assert any(work.decodes and work.prefill_tokens for work in works)
    assert all(seconds > 0 for _, seconds in facts["steps"])
    for limit in ("memory", "arithmetic"):
        assert facts[limit]["used"] > 0
        assert facts[limit]["most"] > 0
    assert min(facts[name] for name in ("prefill_per_second", "decode_per_second", "kv_copy_bytes_per_second")) > 0
