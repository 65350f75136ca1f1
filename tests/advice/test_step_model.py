"""Prices are found again from measured steps, with noise and outliers as a busy machine makes them."""

from __future__ import annotations

import random

import numpy as np
import pytest

from slotdeck.console.advice.step_model import StepModelError, StepTimes, fit
from slotdeck.engine.telemetry.step_log import StepSample, StepWork, read_samples
from tests.support.calibration import PRICES


def works(count: int) -> list[StepWork]:
    rng = random.Random(7)
    found = []
    for _ in range(count):
        decodes = rng.choice([0, 1, 2, 4, 8, 16])
        rows = 0 if decodes and rng.random() < 0.6 else rng.choice([1, 1, 2, 3])
        tokens = sum(rng.choice([8, 16, 64, 128]) for _ in range(rows))
        found.append(
            StepWork(decodes, tokens, rows, rng.randint(0, rows), decodes * rng.randint(50, 900),
                     tokens * rng.randint(20, 700))
        )  # fmt: skip
    return found


def samples(count: int = 1500, noise: float = 0.08, away: float = 0.0) -> list[StepSample]:
    rng = random.Random(11)
    found = []
    for number, work in enumerate(works(count)):
        seconds = PRICES.seconds(work) * rng.gauss(1.0, noise)
        if rng.random() < away:
            seconds *= rng.uniform(2, 8)
        found.append(StepSample(work, float(number), 0.9 * seconds, 0.1 * seconds))
    return found


@pytest.mark.parametrize("away", [0.0, 0.04])
def test_prices_are_found_again(away: float) -> None:
    """Also when the machine was elsewhere in one step of 25."""
    model = fit(samples(away=away))
    errors = [abs(model.seconds(work) / PRICES.seconds(work) - 1) for work in works(300)]
    assert np.percentile(errors, 90) < 0.06
    assert model.samples == 1500


def test_no_price_is_negative_and_what_was_never_seen_costs_nothing() -> None:
    only_decodes = [sample for sample in samples() if not sample.work.prefill_tokens]
    model = fit(only_decodes)
    assert all(price >= 0 for price in model.model_dump(exclude={"spread", "prefill_spread", "samples"}).values())
    assert model.prefill_token == model.prefill_row == model.first_token == 0
    work = StepWork(4, 0, 0, 0, 1000, 0)
    assert model.seconds(work) == pytest.approx(PRICES.seconds(work), rel=0.06)


def test_draws_have_the_spread_that_was_measured() -> None:
    model = fit(samples(noise=0.2))
    times = StepTimes(model, seed=3)
    work = StepWork(2, 0, 0, 0, 500, 0)
    drawn = [times.draw(work) / PRICES.seconds(work) for _ in range(4000)]
    assert np.std(drawn) == pytest.approx(0.2, rel=0.2)
    assert np.median(drawn) == pytest.approx(1.0, abs=0.04)


def test_steps_after_a_pause_are_left_out() -> None:
    paused = [sample._replace(between=None) for sample in samples(60)]
    with pytest.raises(StepModelError, match="50 are needed"):
        fit([*paused, *samples(20)])
    with pytest.raises(StepModelError, match="only 49 steps"):
        fit(samples(49))
    assert fit([*paused, *samples(50)]).samples == 50


def test_samples_come_through_json_unchanged() -> None:
    rows = [[list(sample.work), sample.ended, sample.seconds, sample.between] for sample in samples(5)]
    assert read_samples(rows) == samples(5)
    with pytest.raises(ValueError, match="no measured steps"):
        read_samples([[1, 2]])
