"""Sampling: bounds of top_k and top_p, true shares, seeds, and rows that hold NaN."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.request import SamplingParams
from engine.model.sampling import sample, uniform


def params(**changes: Any) -> SamplingParams:
    return SamplingParams(**({"max_tokens": 9, "temperature": 1.0} | changes))


def draw(row: torch.Tensor, count: int, **changes: Any) -> Counter[int]:
    tokens, finite = sample(row.expand(count, -1), [params(**changes)] * count, range(count))
    assert all(finite)
    return Counter(tokens)


@pytest.mark.parametrize("vocabulary", [7, 256, 300, 5000])
def test_draws_follow_the_probabilities(vocabulary: int) -> None:
    torch.manual_seed(vocabulary)
    row = torch.randn(vocabulary) * 2
    count = 4000
    for temperature in (0.5, 1.0):
        shares = torch.softmax(row / temperature, -1)
        drawn = draw(row, count, temperature=temperature, seed=3)
        for token in shares.topk(5).indices.tolist():
            share = float(shares[token])
            assert abs(drawn[token] / count - share) < 5 * (share * (1 - share) / count) ** 0.5


def nucleus(row: torch.Tensor, top_k: int, top_p: float) -> set[int]:
    """Tokens that may be drawn: each of the ``top_k`` best before which less than ``top_p`` of their mass lies."""
    kept = row.argsort(descending=True)[:top_k]
    shares = torch.softmax(row[kept].double(), -1)
    return set(kept[shares.cumsum(-1) - shares < top_p + 1e-6].tolist())


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 30), top_k=st.integers(1, 400), top_p=st.floats(0.01, 1.0), flat=st.booleans())
def test_top_k_and_top_p_bound_what_is_drawn(seed: int, top_k: int, top_p: float, flat: bool) -> None:
    row = torch.randn(300, generator=torch.Generator().manual_seed(seed)) * (0.01 if flat else 3)
    assert set(draw(row, 60, top_k=top_k, top_p=top_p, seed=seed)) <= nucleus(row, top_k, top_p)
    assert set(draw(row, 60, top_p=top_p, seed=seed)) <= nucleus(row, 300, top_p)


def test_all_that_is_inside_the_bounds_can_be_drawn() -> None:
    row = torch.randn(300, generator=torch.Generator().manual_seed(1)) * 0.1
    assert set(draw(row, 3000, top_k=40)) == nucleus(row, 40, 1.0)
    assert set(draw(row, 3000, top_p=0.1)) == nucleus(row, 300, 0.1)


def test_greedy_and_its_equals() -> None:
    rows = torch.randn(5, 300, generator=torch.Generator().manual_seed(0))
    best = rows.argmax(-1).tolist()
    for changes in ({"temperature": 0.0}, {"top_k": 1}, {"top_p": 1e-6}, {"temperature": 1e-6}):
        assert sample(rows, [params(**changes)] * 5, range(5))[0] == best
    assert sample(torch.tensor([[1.0, 1.0]]), [params(top_k=1, seed=1)], [0])[0] == [0]


def test_a_draw_depends_on_seed_and_position_only() -> None:
    rows = torch.randn(6, 300, generator=torch.Generator().manual_seed(0))
    mixed = [params(seed=i, top_k=50 if i % 2 else 0, temperature=0.0 if i == 3 else 1.0) for i in range(6)]
    together, _ = sample(rows, mixed, range(10, 16))
    for i in reversed(range(6)):
        assert sample(rows[i : i + 1], mixed[i : i + 1], [10 + i])[0] == [together[i]]
    draws = {uniform(seed, position) for seed in range(20) for position in range(20)}
    assert len(draws) == 400
    assert uniform(-1, 5) == uniform(-1, 5) != uniform(1, 5)
    assert all(0 <= value < 1 for value in draws)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_row_that_is_not_finite_is_told_and_spares_the_others(bad: float) -> None:
    rows = torch.randn(3, 300, generator=torch.Generator().manual_seed(0))
    alone, _ = sample(rows[2:], [params(seed=7)], [4])
    rows[1, 17] = bad
    tokens, finite = sample(rows, [params(), params(), params(seed=7)], [4, 4, 4])
    assert finite == [True, False, True]
    assert tokens[2] == alone[0]
