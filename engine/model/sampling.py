"""From logits to tokens, for all sampling rows of a step at once.

The random draw for a position depends on the request's seed and that position only, and candidates are walked in the
order of their ids, so a request gives the same text whatever shares its batch, however its prompt was cut, and however
often it was preempted.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F

from engine.core.request import SamplingParams

NOT_FINITE = "the model computed values that are not finite (NaN or infinity) for this request"

_PART = 256
"""The vocabulary is walked in parts of this many tokens: first to the part, then inside it."""


def sample(
    logits: torch.Tensor, params: Sequence[SamplingParams], positions: Sequence[int]
) -> tuple[list[int], list[bool]]:
    """Choose the token at ``positions[i]`` from ``logits[i]``.

    ``logits`` is fp32 [R, vocab]. Returns R token ids and R flags: False where a row holds NaN or infinity, whose token
    means nothing. Ties at the edge of top_k or top_p are kept.
    """
    finite = torch.isfinite(logits.sum(-1)).tolist()
    tokens = logits.argmax(-1).tolist()
    drawn = [i for i, p in enumerate(params) if p.temperature > 0 and p.top_k != 1 and finite[i]]
    if drawn:
        rows = logits if len(drawn) == len(params) else logits[drawn]
        chosen = _draw(rows, [params[i] for i in drawn], [positions[i] for i in drawn])
        for index, token in zip(drawn, chosen, strict=True):
            tokens[index] = token
    return tokens, finite


def _draw(logits: torch.Tensor, params: Sequence[SamplingParams], positions: Sequence[int]) -> list[int]:
    device = logits.device
    scale = torch.tensor([1 / max(p.temperature, 1e-4) for p in params], dtype=torch.float32, device=device)
    # The best token gets weight 1, so that a small temperature cannot overflow.
    weights = (logits - logits.amax(-1, keepdim=True)).mul_(scale[:, None]).exp_()
    for index, p in enumerate(params):
        floor = _lowest_kept(weights[index], p)
        if floor is not None:
            weights[index].masked_fill_(weights[index] < floor, 0)
    draws = torch.tensor([uniform(p.seed, at) for p, at in zip(params, positions, strict=True)], dtype=torch.float64)
    parts = F.pad(weights, (0, -weights.shape[1] % _PART)).view(len(params), -1, _PART)
    part, rest = _walk(parts.sum(-1), draws.to(device))
    inside = parts[torch.arange(len(params), device=device), part]
    token, _ = _walk(inside, rest)
    return [int(value) for value in (part * _PART + token).tolist()]


def _walk(weights: torch.Tensor, draws: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Where each draw in [0, 1) falls among its row of weights, and how far into that weight, again in [0, 1).

    A weight of 0 is never chosen: the place is the first whose running sum exceeds the draw's share of the total.
    """
    sums = weights.cumsum(-1, dtype=torch.float64)
    wanted = draws[:, None] * sums[:, -1:]
    place = torch.searchsorted(sums, wanted, right=True).clamp_(max=weights.shape[1] - 1)
    size = weights.gather(1, place).double()
    into = (wanted - (sums.gather(1, place) - size)) / size
    return place[:, 0], into[:, 0].clamp(0, 1 - 1e-12)


def _lowest_kept(weights: torch.Tensor, params: SamplingParams) -> torch.Tensor | None:
    """Weight below which tokens are dropped by top_k, then top_p; None when all are kept. ``weights`` [vocab]."""
    vocabulary = weights.shape[0]
    best = None
    if 0 < params.top_k < vocabulary:
        best = torch.topk(weights, params.top_k).values
        if params.top_p >= 1:
            return best[-1]
    elif params.top_p >= 1:
        return None
    mass = (weights if best is None else best).sum(dtype=torch.float64)
    if best is None:
        # All tokens below this weight together have less than 1 - top_p, so the edge lies above it.
        best = weights[weights >= (1 - params.top_p) * mass / vocabulary].sort(descending=True).values
    edge = torch.searchsorted(best.cumsum(-1, dtype=torch.float64), params.top_p * mass)
    return best[edge.clamp(max=best.shape[0] - 1)]


def uniform(seed: int, position: int) -> float:
    """The draw in [0, 1) for one position of one seed."""
    generator = np.random.Generator(np.random.Philox(key=seed % (1 << 64), counter=[position, 0, 0, 0]))
    return float(generator.random())
