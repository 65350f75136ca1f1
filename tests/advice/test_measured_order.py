"""The simulator puts users, slots and modes in the order in which a quiet machine really put them, and comes near.

Once with prices taken from how one and five streams were measured (`slotdeck bench`), which know nothing of 20 users or
of one slot; once with the prices fitted to the steps of `python -m tests.truth`.
"""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from slotdeck.console.advice.calibration import Calibration
from slotdeck.console.advice.simulation_result import SimulationResult
from slotdeck.console.advice.simulator import Simulator
from slotdeck.console.advice.step_model import StepModel, StepTimes
from slotdeck.console.advice.traffic import Edge, Turn, User
from slotdeck.engine.settings import LiveSettings
from tests.truth import COMPARED
from tests.truth import predicted as predicted_by_calibration

MEASURED = json.loads((Path(__file__).parents[1] / "recordings" / "measured-bench.json").read_text("utf-8"))
ROWS: list[dict[str, Any]] = MEASURED["rows"]
PROMPT, ANSWER = MEASURED["prompt_tokens"], MEASURED["answer_tokens"]
SAME = 1.15
"""Measured values nearer than this are not told apart: a second run may put them the other way round."""
EDGE = Edge(intake=0.003, intake_token=0.0, turnaround=0.003)


def prices() -> StepModel:
    """From first token and gaps of one user alone, and the gaps of five; nothing of 20 users, or of one slot."""
    one, five = ROWS[0], ROWS[2]
    decode = (five["itl_p50"] - one["itl_p50"]) / (five["users"] - one["users"])
    step = one["itl_p50"] - decode
    chunks = -(-PROMPT // MEASURED["settings"]["budget"])
    prefill = (one["ttft_p50"] - EDGE.intake - chunks * step) / PROMPT
    return StepModel(
        step=step, decode=decode, prefill_token=prefill, prefill_row=0, first_token=0, decode_context=0,
        prefill_context=0,
    )  # fmt: skip


@pytest.fixture(scope="module")
def predicted() -> list[SimulationResult]:
    outcomes = []
    for row in ROWS:
        settings = LiveSettings(slots=row["slots"], **MEASURED["settings"])
        turns = [Turn(0.0, PROMPT, ANSWER, True)] * MEASURED["requests_per_user"]
        users = [User(f"user {number}", turns, float("inf")) for number in range(row["users"])]
        outcomes.append(Simulator(settings, StepTimes(prices()), EDGE).run(users))
    return outcomes


@pytest.mark.parametrize("name", ["tokens_per_second", "ttft_p50", "ttft_p95", "itl_p50", "itl_p95"])
def test_what_was_measured_higher_is_predicted_higher(predicted: list[SimulationResult], name: str) -> None:
    for (row, outcome), (other_row, other) in combinations(zip(ROWS, predicted, strict=True), 2):
        if max(row[name], other_row[name]) / min(row[name], other_row[name]) > SAME:
            higher = getattr(outcome, name) > getattr(other, name)
            assert higher == (row[name] > other_row[name]), (row, other_row)


def test_first_tokens_and_throughput_come_near_what_was_measured(predicted: list[SimulationResult]) -> None:
    """Of all rows, 20 users on 20 slots and on one included, which the prices know nothing of."""
    for row, outcome in zip(ROWS, predicted, strict=True):
        assert outcome.ttft_p95 == pytest.approx(row["ttft_p95"], rel=0.2)
        assert outcome.tokens_per_second == pytest.approx(row["tokens_per_second"], rel=0.25)


TRUTH = json.loads((Path(__file__).parents[1] / "recordings" / "measured-truth.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def simulated() -> list[dict[str, float]]:
    calibration = Calibration.model_validate(TRUTH["card"])
    return [predicted_by_calibration(calibration, row["users"], row["mode"], seeds=3) for row in TRUTH["rows"]]


@pytest.mark.parametrize("name", COMPARED)
def test_users_and_modes_come_in_the_order_in_which_they_were_measured(
    simulated: list[dict[str, float]], name: str
) -> None:
    rows = [(row[name]["measured"], guess[name]) for row, guess in zip(TRUTH["rows"], simulated, strict=True)]
    told_apart = 0
    for (runs, guess), (other_runs, other) in combinations(rows, 2):
        if min(runs) > SAME * max(other_runs) or min(other_runs) > SAME * max(runs):
            told_apart += 1
            assert (guess > other) == (min(runs) > max(other_runs))
    assert told_apart > 20


@pytest.mark.parametrize("name", COMPARED)
def test_2_5_and_20_users_in_three_modes_are_predicted_within_a_fifth(
    simulated: list[dict[str, float]], name: str
) -> None:
    for row, guess in zip(TRUTH["rows"], simulated, strict=True):
        assert guess[name] == pytest.approx(median(row[name]["measured"]), rel=0.2), (row["users"], row["mode"])
