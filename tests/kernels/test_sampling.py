"""Tokens drawn by the kernels: as the twin draws them, from what top_k, top_p and min_p keep, row by row."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotdeck.engine.kernels.library import Kernels
from slotdeck.engine.model.sampling import uniform
from slotdeck.engine.model.step_decoder import Draw
from tests.kernels.library import EXAMPLES

ROUNDING = 6e-6
"""By how much sums of weights in fp32 may differ from exact ones, as a share of the total weight."""


def kept(logits: np.ndarray, how: Draw, shift: float) -> np.ndarray:
    """Exact weights of what may be drawn, 0 for the rest; the mass asked of top_p is moved by ``shift``."""
    weights = np.exp((logits.astype(np.float64) - logits.max()) * how.inverse_temperature)
    floor = 0.0
    if 0 < how.top_k < len(weights):
        floor = float(np.sort(weights)[-how.top_k])
    if how.top_p < 1:
        best = np.sort(weights[weights >= floor])[::-1]
        wanted = (how.top_p + shift) * best.sum()
        floor = float(best[min(int(np.searchsorted(best.cumsum(), wanted)), len(best) - 1)])
    return np.where(weights >= max(floor, how.min_p) * (1 - 1e-6), weights, 0)


def explains(logits: np.ndarray, how: Draw, token: int) -> bool:
    """Whether an exact computation draws this token, up to rounding."""
    drawn = uniform(how.seed, how.position)
    for shift in (0.0, -ROUNDING, ROUNDING):
        weights = kept(logits, how, shift)
        shares = weights.cumsum() / weights.sum()
        before = shares[token] - weights[token] / weights.sum()
        if weights[token] > 0 and before - ROUNDING <= drawn <= shares[token] + ROUNDING:
            return True
    return False


@settings(max_examples=EXAMPLES)
@given(
    seed=st.integers(0, 1 << 32),
    vocabulary=st.sampled_from([1, 7, 255, 256, 257, 1000, 49_152]),
    spread=st.sampled_from([0.0, 0.1, 2.0, 30.0]),
    ties=st.booleans(),
)
def test_every_token_is_one_that_an_exact_computation_draws(
    kernels: Kernels, seed: int, vocabulary: int, spread: float, ties: bool
) -> None:
    source = random.Random(seed)
    rows = source.choice([1, 2, 5])
    logits = (np.random.default_rng(seed).standard_normal((rows, vocabulary)) * spread).astype(np.float32)
    if ties:
        logits = logits.round()
    draws = [
        Draw(
            row=0,
            seed=source.choice([0, 1, source.getrandbits(64), -source.getrandbits(40)]),
            position=source.choice([1, source.getrandbits(20)]),
            inverse_temperature=1 / source.choice([1e-4, 0.3, 0.8, 1.0, 2.0]),
            top_k=source.choice([0, 1, 2, 40, 5000]),
            top_p=source.choice([1.0, 0.95, 0.5, 0.001, 0.0]),
            min_p=source.choice([0.0, 0.05, 1.0]),
        )
        for _ in range(rows)
    ]
    before = logits.copy()
    for row, token in enumerate(kernels.draw(logits, draws)):
        assert explains(logits[row], draws[row], token), (draws[row], token)
    assert (logits == before).all()


def test_the_draw_is_that_of_the_twin(kernels: Kernels) -> None:
    source = random.Random(4)
    vocabulary = 1 << 18  # with equal weights the token tells 18 bits of the draw
    for seed in (0, 1, source.getrandbits(64), source.getrandbits(80), -5):
        for position in (0, 1, 4095, (1 << 40) + 3):
            draw = Draw(0, seed, position, 1.0, 0, 1.0, 0.0)
            token = kernels.draw(np.zeros((1, vocabulary), np.float32), [draw])[0]
            assert token == int(uniform(seed, position) * vocabulary)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_row_that_is_not_finite_is_told_and_spares_the_others(kernels: Kernels, bad: float) -> None:
    for vocabulary, place in ((300, 299), (300, 0), (49_152, 20_001)):
        logits = np.random.default_rng(2).standard_normal((3, vocabulary)).astype(np.float32)
        draws = [Draw(0, row, 9, 1.0, 0, 0.9, 0.0) for row in range(3)]
        wanted = kernels.draw(logits, draws)
        logits[1, place] = bad
        assert kernels.draw(logits, draws) == [wanted[0], -1, wanted[2]]
