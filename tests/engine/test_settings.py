"""The table of settings: what is declared once reaches every place that reads it."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from slotdeck.engine.settings import SETTINGS, LiveFields, LiveSettings, StartSettings, Step, parse_api_key
from slotdeck.engine.start import PoolMemory, choose_limits
from slotdeck.engine.telemetry.frame import LimitInfo

MEMORY = PoolMemory(free=8 << 30, total=16 << 30, per_token=1024)


def test_a_frame_carries_every_live_setting() -> None:
    """The frame is a contract with other servers too, so it lists its fields itself; none may be missing there."""
    LimitInfo.model_validate(LiveSettings().model_dump())
    assert set(LiveSettings.model_fields) <= set(LimitInfo.model_fields)


def test_every_live_setting_given_at_start_is_in_force_afterwards() -> None:
    given: dict[str, Any] = {
        "slots": 3, "context": 512, "queue": 7, "budget": 32, "kv_tokens": 4096, "mode": "static",
        "preemption": "swap", "swap_space": 5 << 20, "prefix_cache": False, "prefix_sharing": True, "itl_target": 90,
    }  # fmt: skip
    assert given.keys() >= {"slots", "context", "queue", "budget", "kv_tokens", "mode", "itl_target"}
    live, _ = choose_limits(StartSettings(**given), 8192, "cpu", MEMORY)
    assert {name: getattr(live, name) for name in given} == given
    defaults = LiveSettings()
    untested = {name for name in LiveFields.model_fields if name not in given}
    assert {name: getattr(live, name) for name in untested} == {name: getattr(defaults, name) for name in untested}


@pytest.mark.parametrize(("device", "budget"), [("cpu", 64), ("cuda", 512)])
def test_the_budget_that_nobody_set_depends_on_the_device(device: str, budget: int) -> None:
    assert choose_limits(StartSettings(kv_tokens=4096), 8192, device, MEMORY)[0].budget == budget


def test_the_context_that_nobody_set_is_at_most_the_trained_one() -> None:
    assert choose_limits(StartSettings(), 8192, "cpu", MEMORY)[0].context == 2048
    assert choose_limits(StartSettings(), 1024, "cpu", MEMORY)[0].context == 1024


def test_only_live_settings_are_marked_live_and_all_have_what_screens_need() -> None:
    assert {name for name, setting in SETTINGS.items() if setting.live} == set(LiveFields.model_fields)
    for name, setting in SETTINGS.items():
        assert setting.name == name
        assert setting.help
        assert setting.title
        if setting.live and not setting.choices:
            assert setting.minimum is not None
            assert setting.maximum is not None
            assert setting.unit
    assert (SETTINGS["kv_tokens"].title, SETTINGS["slots"].title) == ("pool", "slots")


@pytest.mark.parametrize(
    ("step", "value", "above", "below"),
    [
        (Step(), 4, 5, 3),
        (Step(10, large=80, large_from=80), 70, 80, 60),
        (Step(10, large=80, large_from=80), 80, 160, 70),
        (Step(10, large=80, large_from=80), 85, 160, 80),
        (Step(256, large=1024, large_from=4096), 2048, 2304, 1792),
        (Step(256, large=1024, large_from=4096), 4096, 5120, 3840),
        (Step(256, large=1024, large_from=4096), 4200, 5120, 4096),
        (Step(doubles=True), 64, 128, 32),
        (Step(doubles=True), 100, 128, 64),
        (Step(doubles=True), 1, 2, 0),
    ],
)
def test_one_press_moves_to_the_next_round_value(step: Step, value: int, above: int, below: int) -> None:
    assert (step.move(value, 1), step.move(value, -1)) == (above, below)


def test_an_api_key_has_a_label_and_a_key() -> None:
    assert parse_api_key(" laptop = s3=cret ") == ("laptop", "s3=cret")
    for text in ("laptop", "=key", "label=", " = "):
        with pytest.raises(ValueError, match="LABEL=KEY"):
            parse_api_key(text)


def test_the_table_is_read_without_torch() -> None:
    code = "import sys; import slotdeck.engine.settings, slotdeck.engine.configuration; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
