"""Sampling: bounds of top_k, top_p and min_p, true shares, seeds, penalties, log-probabilities, rows that hold NaN."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from slotdeck.engine.core.request import Request
from slotdeck.engine.model import sampling as sampling_module
from slotdeck.engine.model.sampling import sample, uniform
from tests.support.tiny_models import make_request


def at(position: int, output: int = 0, **changes: Any) -> Request:
    """A request whose next token stands at ``position``, after so many output tokens."""
    request = make_request("r", [0] * (position - output), **({"temperature": 1.0} | changes))
    request.token_ids += [0] * output
    return request


def after(prompt: list[int], output: list[int], **changes: Any) -> Request:
    request = make_request("r", prompt, **changes)
    request.token_ids += output
    return request


def draw(row: torch.Tensor, count: int, **changes: Any) -> Counter[int]:
    sampled = sample(row.expand(count, -1), [at(position + 1, **changes) for position in range(count)])
    assert all(sampled.finite)
    return Counter(sampled.tokens)


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


@settings(max_examples=60)
@given(seed=st.integers(0, 1 << 30), top_k=st.integers(1, 400), top_p=st.floats(0.01, 1.0), flat=st.booleans())
def test_top_k_and_top_p_bound_what_is_drawn(seed: int, top_k: int, top_p: float, flat: bool) -> None:
    row = torch.randn(300, generator=torch.Generator().manual_seed(seed)) * (0.01 if flat else 3)
    assert set(draw(row, 60, top_k=top_k, top_p=top_p, seed=seed)) <= nucleus(row, top_k, top_p)
    assert set(draw(row, 60, top_p=top_p, seed=seed)) <= nucleus(row, 300, top_p)


@settings(max_examples=60)
@given(
    seed=st.integers(0, 1 << 30),
    vocabulary=st.sampled_from([5, 64, 1000, 5000]),
    top_k=st.one_of(st.just(0), st.integers(1, 6000)),
    top_p=st.one_of(st.just(1.0), st.floats(0.001, 0.9999)),
    shape=st.tuples(st.sampled_from([0.0, 0.01, 1.0, 30.0]), st.booleans()),
)
def test_the_edge_is_that_of_the_whole_vocabulary_sorted(
    seed: int, vocabulary: int, top_k: int, top_p: float, shape: tuple[float, bool]
) -> None:
    scale, ties = shape
    row = torch.randn(vocabulary, generator=torch.Generator().manual_seed(seed)) * scale
    row = row.round() if ties else row
    weights = (row - row.max()).exp()
    params = at(1, top_k=top_k, top_p=top_p).sampling
    best = weights.sort(descending=True).values[: top_k or None]
    sums = best.cumsum(-1, dtype=torch.float64)
    wanted = float(best[-1]) if top_p >= 1 else float(best[int((sums < top_p * sums[-1] * (1 - 1e-12)).sum())])
    found = sampling_module._lowest_kept(weights, params)
    assert (0.0 if found is None else found) == (0.0 if top_p >= 1 and not 0 < top_k < vocabulary else wanted)


def test_all_that_is_inside_the_bounds_can_be_drawn() -> None:
    row = torch.randn(300, generator=torch.Generator().manual_seed(1)) * 0.1
    assert set(draw(row, 3000, top_k=40)) == nucleus(row, 40, 1.0)
    assert set(draw(row, 3000, top_p=0.1)) == nucleus(row, 300, 0.1)


@settings(max_examples=60)
@given(
    seed=st.integers(0, 1 << 30),
    min_p=st.floats(0.01, 1.0),
    top_k=st.integers(1, 300),
    top_p=st.floats(0.05, 1.0),
    scale=st.sampled_from([0.3, 1.0, 3.0]),
)
def test_cuts_are_those_of_transformers(seed: int, min_p: float, top_k: int, top_p: float, scale: float) -> None:
    row = torch.randn(1, 300, generator=torch.Generator().manual_seed(seed)) * scale
    cuts = LogitsProcessorList(
        # A token exactly on an edge may fall to either side of it.
        [TopKLogitsWarper(top_k), TopPLogitsWarper(min(1.0, top_p + 1e-6)), MinPLogitsWarper(min_p * (1 - 1e-5))]
    )
    kept = torch.isfinite(cuts(torch.zeros(1, 1, dtype=torch.int64), row.clone()))[0].nonzero()[:, 0].tolist()
    assert set(draw(row[0], 80, min_p=min_p, top_k=top_k, top_p=top_p, seed=seed)) <= set(kept)


def test_all_inside_min_p_can_be_drawn() -> None:
    row = torch.randn(300, generator=torch.Generator().manual_seed(1))
    shares = torch.softmax(row, -1)
    assert set(draw(row, 4000, min_p=0.2)) == set((shares >= 0.2 * shares.max()).nonzero()[:, 0].tolist())


def test_greedy_and_its_equals() -> None:
    rows = torch.randn(5, 300, generator=torch.Generator().manual_seed(0))
    best = rows.argmax(-1).tolist()
    for changes in ({"temperature": 0.0}, {"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}, {"temperature": 1e-6}):
        assert sample(rows, [at(1, **changes)] * 5).tokens == best
    assert sample(torch.tensor([[1.0, 1.0]]), [at(1, top_k=1, seed=1)]).tokens == [0]


def test_a_draw_depends_on_seed_and_position_only() -> None:
    rows = torch.randn(6, 300, generator=torch.Generator().manual_seed(0))
    mixed = [at(10 + i, seed=i, top_k=50 if i % 2 else 0, temperature=0.0 if i == 3 else 1.0) for i in range(6)]
    mixed[4] = after([5, 6], [7] * 12, temperature=1.0, frequency_penalty=1.0, logit_bias=((3, 2.0),), top_logprobs=2)
    together = sample(rows, mixed)
    for i in reversed(range(6)):
        alone = sample(rows[i : i + 1], mixed[i : i + 1])
        assert alone.tokens == [together.tokens[i]]
        assert alone.logprobs == [together.logprobs[i]]
    draws = {uniform(seed, position) for seed in range(20) for position in range(20)}
    assert len(draws) == 400
    assert uniform(-1, 5) == uniform(-1, 5) != uniform(1, 5)
    assert all(0 <= value < 1 for value in draws)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_row_that_is_not_finite_is_told_and_spares_the_others(bad: float) -> None:
    rows = torch.randn(3, 300, generator=torch.Generator().manual_seed(0))
    last = after([3] * 4, [9, 9, 8], temperature=1.0, seed=7, presence_penalty=1.5, top_logprobs=3)
    alone = sample(rows[2:], [last])
    rows[1, 17] = bad
    sampled = sample(rows, [at(4), at(4, repetition_penalty=2.0, top_logprobs=1), last])
    assert sampled.finite == [True, False, True]
    assert sampled.tokens[2] == alone.tokens[0]
    assert sampled.logprobs == [None, None, alone.logprobs[0]]


def changed_by(row: torch.Tensor, request: Request) -> torch.Tensor:
    """What ``row`` became before the choice."""
    kept = row.clone()
    changed = sampling_module._changed(row[None], [request])[0]
    assert torch.equal(row, kept)  # the model's own logits stay as they are
    return changed


def test_repetition_penalty_is_that_of_transformers() -> None:
    row = torch.randn(300, generator=torch.Generator().manual_seed(2)) * 3
    prompt, output = [1, 2, 2, 250, 299], [7, 2, 7, 0]
    for penalty in (0.5, 1.3, 4.0):
        wanted = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([prompt + output]), row[None].clone())[0]
        request = after(prompt, output, repetition_penalty=penalty)
        torch.testing.assert_close(changed_by(row, request), wanted)


@pytest.mark.parametrize(
    "change",
    [
        {"logit_bias": ((7, 1.0),)},
        {"repetition_penalty": 1.5},
        {"presence_penalty": 0.5},
        {"frequency_penalty": 0.5},
        {"min_tokens": 4, "stop_token_ids": frozenset({7})},
    ],
)
def test_each_field_alone_changes_the_logits_and_is_not_plain(change: dict[str, Any]) -> None:
    row = torch.randn(300, generator=torch.Generator().manual_seed(3))
    for temperature, plain in ((0.0, sampling_module.plainly_greedy), (1.0, sampling_module.plainly_drawn)):
        assert plain(after([1], [7, 2, 7], temperature=temperature))
        request = after([1], [7, 2, 7], temperature=temperature, **change)
        assert not plain(request)
        assert changed_by(row, request)[7] != row[7]


def test_presence_and_frequency_penalties_count_the_output_only() -> None:
    row = torch.randn(300, generator=torch.Generator().manual_seed(3))
    request = after([1, 1, 2], [7, 2, 7, 7, 299], presence_penalty=0.5, frequency_penalty=-0.25)
    wanted = row.clone()
    for token, count in {7: 3, 2: 1, 299: 1}.items():
        wanted[token] -= 0.5 - 0.25 * count
    torch.testing.assert_close(changed_by(row, request), wanted)


def test_bias_comes_before_the_repetition_penalty_and_that_before_what_is_subtracted() -> None:
    row = torch.zeros(8)
    row[5] = -1.0
    request = after([5], [5, 6], logit_bias=((5, 3.0), (7, -1.0)), repetition_penalty=2.0, presence_penalty=0.25)
    assert changed_by(row, request).tolist() == [0, 0, 0, 0, 0, (-1 + 3) / 2 - 0.25, -0.25, -1.0]


def test_logit_bias_forces_and_forbids() -> None:
    row = torch.randn(300, generator=torch.Generator().manual_seed(4)) * 3
    best = int(row.argmax())
    for temperature in (0.0, 1.0):
        assert set(draw(row, 50, temperature=temperature, logit_bias=((17, 100.0),))) == {17}
        assert best not in draw(row, 300, temperature=temperature, logit_bias=((best, -100.0),))
    assert draw(row, 20, logit_bias=((300, 100.0), (-1, 100.0))) == draw(row, 20)  # no token of this model


def test_stop_tokens_wait_for_min_tokens() -> None:
    row = torch.zeros(30)
    row[[4, 9]] = 50.0
    ends = frozenset({4, 9, 1000})
    for temperature in (0.0, 1.0):
        early = [at(6 + n, n, temperature=temperature, seed=n, min_tokens=5, stop_token_ids=ends) for n in range(5)]
        assert not ends & set(sample(row.expand(5, -1), early).tokens)
        late = at(11, 5, temperature=temperature, min_tokens=5, stop_token_ids=ends)
        assert sample(row[None], [late]).tokens[0] in ends


def test_changes_touch_their_own_row_only() -> None:
    rows = torch.randn(4, 300, generator=torch.Generator().manual_seed(5))
    plain = at(9, seed=1)
    loud = after(
        [299, 0],
        [298, 299],
        repetition_penalty=3.0,
        presence_penalty=2.0,
        logit_bias=((299, 9.0), (0, 9.0)),
        min_tokens=9,
        stop_token_ids=frozenset({299, 0}),
    )
    assert sampling_module._changed(rows, [plain] * 4) is rows
    changed = sampling_module._changed(rows, [plain, loud, plain, loud])
    assert torch.equal(changed[[0, 2]], rows[[0, 2]])
    assert changed[1, 299] == changed[3, 0] == -torch.inf


@settings(max_examples=30)
@given(seed=st.integers(0, 1 << 30), counts=st.lists(st.sampled_from([None, 0, 1, 5, 20]), min_size=1, max_size=5))
def test_logprobs_are_those_of_the_model_whatever_was_changed(seed: int, counts: list[int | None]) -> None:
    rows = torch.randn(len(counts), 300, generator=torch.Generator().manual_seed(seed)) * 3
    wanted = torch.log_softmax(rows, -1)
    requests = [
        after([3], [4, 4], temperature=1.5, seed=seed + i, top_logprobs=count, frequency_penalty=2.0, min_p=0.01)
        for i, count in enumerate(counts)
    ]
    sampled = sample(rows, requests)
    for row, token, count, found in zip(wanted, sampled.tokens, counts, sampled.logprobs, strict=True):
        if count is None:
            assert found is None
            continue
        assert found is not None
        assert found.logprob == pytest.approx(float(row[token]), abs=1e-5)
        best = row.topk(count)
        assert [token for token, _ in found.top] == best.indices.tolist()
        assert [value for _, value in found.top] == pytest.approx(best.values.tolist(), abs=1e-5)


def test_more_alternatives_than_tokens() -> None:
    found = sample(torch.tensor([[2.0, 1.0]]), [at(1, top_logprobs=20)]).logprobs[0]
    assert found is not None
    assert [token for token, _ in found.top] == [0, 1]
