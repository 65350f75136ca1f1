"""What a finding's change would have done: the recorded requests, sent again to the simulator."""

from __future__ import annotations

from pathlib import Path

import pytest

from slotdeck.console.advice.calibration import Calibration, Limit, Wording
from slotdeck.console.advice.finding import Finding
from slotdeck.console.advice.prediction import NoPredictionError, predict
from slotdeck.console.advice.recorded import replay
from slotdeck.console.advice.step_model import StepModel
from slotdeck.console.advice.traffic import Edge
from slotdeck.console.planning.predictions import can_be_predicted, prediction_text
from slotdeck.console.sources.history import local_history
from slotdeck.engine.settings import LiveSettings
from slotdeck.engine.telemetry.frame import LimitInfo, WindowInfo
from slotdeck.engine.telemetry.history.schema import RequestRecord
from tests.support.doctor_frames import run

PRICES = StepModel(
    step=0.004, decode=0.002, prefill_token=0.0005, prefill_row=0.001, first_token=0.001, decode_context=1e-7,
    prefill_context=1e-8,
)  # fmt: skip
CALIBRATION = Calibration(
    measured=0.0, model="m", weights="int8", kv_dtype="bf16", device="cpu", threads=2, kernels="native",
    weight_bytes=1, kv_bytes_per_token=1000, prefill_chunk=64, prefill_per_second=1000.0, decode_per_second=150.0,
    memory=Limit(used=1, most=2), arithmetic=Limit(used=1, most=2), overhead=0.1, kv_copy_bytes_per_second=1e9,
    alone=PRICES, served=PRICES, edge=Edge(), wording=Wording(base=20, per_word=1.2, per_message=5),
)  # fmt: skip
ONE_SLOT = LimitInfo(
    slots=1, context=2048, queue=16, budget=64, kv_tokens=8192, mode="continuous", preemption="recompute",
    swap_space=0, prefix_cache=True, prefix_sharing=False, itl_target=0,
)  # fmt: skip


def agents(number: int, seconds: float) -> list[RequestRecord]:
    """So many who never pause, one after the other on one slot, as an engine with these prices would serve them."""
    taken = 100 * 0.0005 + 2 * 0.005 + 80 * 0.006
    records, now, asked = [], 0.0, [0.0] * number
    while now < seconds:
        for user in range(number):
            start, now = now, now + taken
            records.append(
                RequestRecord(
                    boot_id="b", request_id=f"{len(records)}", user=f"u{user}", ended=1000 + now,
                    duration=now - asked[user], outcome="finished", prompt_tokens=100, output_tokens=80,
                    ttft=start - asked[user] + 0.06,
                )
            )  # fmt: skip
            asked[user] = now
    return records


def measured(records: list[RequestRecord], limits: LimitInfo = ONE_SLOT) -> WindowInfo:
    known = {name: value for name in LiveSettings.model_fields if (value := getattr(limits, name)) is not None}
    settings = LiveSettings.model_validate(known)
    outcome = replay(records, settings, CALIBRATION)
    return WindowInfo(seconds=60, ttft_p95=outcome.ttft_p95, itl_p95=outcome.itl_p95)


def test_more_slots_end_the_queue_and_cost_some_itl() -> None:
    records = agents(5, 30)
    found = predict(records, ONE_SLOT, {"slots": 5}, CALIBRATION, measured(records))
    assert found.now.ttft_p95 is not None
    assert found.then.ttft_p95 is not None
    assert found.now.ttft_p95 > 1.5
    assert found.then.ttft_p95 < 0.5
    assert (found.then.itl_p95 or 0) > (found.now.itl_p95 or 0)
    assert (found.then.generated_per_second or 0) > (found.now.generated_per_second or 0)
    assert found.text.startswith("TTFT p95 ")
    assert "preempted" not in found.text


def test_a_simulation_that_does_not_fit_what_was_measured_is_not_believed() -> None:
    records = agents(5, 20)
    for wrong in (WindowInfo(seconds=60, ttft_p95=0.2, itl_p95=0.006), WindowInfo(seconds=60)):
        with pytest.raises(NoPredictionError, match="the simulator computes a TTFT p95 of"):
            predict(records, ONE_SLOT, {"slots": 5}, CALIBRATION, wrong)


def test_too_little_traffic_and_unknown_or_refused_settings_predict_nothing() -> None:
    records = agents(5, 20)
    with pytest.raises(NoPredictionError, match="only 2 requests"):
        predict(records[:2], ONE_SLOT, {"slots": 5}, CALIBRATION, WindowInfo(seconds=60))
    with pytest.raises(NoPredictionError, match="does not report its settings"):
        predict(records, LimitInfo(), {"slots": 5}, CALIBRATION, WindowInfo(seconds=60))
    with pytest.raises(NoPredictionError, match="would refuse"):
        predict(records, ONE_SLOT, {"slots": 0}, CALIBRATION, measured(records))


def test_what_cannot_be_predicted_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    finding = Finding("queue", "warn", "w", (), "t", "y", {"slots": 5})
    assert can_be_predicted(finding)
    assert not can_be_predicted(Finding("queue", "warn", "w", (), "t", "y"))
    assert not can_be_predicted(Finding("refused", "warn", "w", (), "t", "y", {"slots": 5}))
    text = prediction_text(run(), finding, local_history())
    assert text.startswith("–  this server does not report its model and device")


def test_only_requests_with_a_duration_and_an_answer_are_replayed() -> None:
    records = agents(5, 20)
    measured = WindowInfo(seconds=60)
    unknown = [one.model_copy(update={"duration": None}) for one in records[:4]]
    silent = [one.model_copy(update={"output_tokens": 0}) for one in records[4:8]]
    with pytest.raises(NoPredictionError, match="only 0 requests"):
        predict([*unknown, *silent], ONE_SLOT, {"slots": 5}, CALIBRATION, measured)
