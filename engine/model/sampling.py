"""From logits to tokens, for all sampling rows of a step at once.

The random draw for a position depends on the request's seed and that position only, and candidates are walked in the
order of their ids, so a request gives the same text whatever shares its batch, however its prompt was cut, and however
often it was preempted.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from engine.core.request import SamplingParams

NOT_FINITE = "the model computed values that are not finite (NaN or infinity) for this request"

_CANDIDATES = 1024
"""Most likely tokens looked at first for top_p; a flatter distribution takes the full sort."""


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
    temperatures = torch.tensor([max(p.temperature, 1e-4) for p in params], dtype=torch.float32, device=device)
    # The best token gets weight 1, so that a small temperature cannot overflow.
    weights = ((logits - logits.amax(-1, keepdim=True)) / temperatures[:, None]).exp_()
    for index, p in enumerate(params):
        floor = _lowest_kept(weights[index], p)
        if floor is not None:
            weights[index].masked_fill_(weights[index] < floor, 0)
    sums = weights.cumsum(-1, dtype=torch.float64)
    draws = torch.tensor([uniform(p.seed, at) for p, at in zip(params, positions, strict=True)], dtype=torch.float64)
    # right=True finds the first sum above the draw, so a token of weight 0 is never chosen.
    found = torch.searchsorted(sums, draws.to(device)[:, None] * sums[:, -1:], right=True)
    return [int(token) for token in found.clamp_(max=logits.shape[-1] - 1)[:, 0].tolist()]


def _lowest_kept(weights: torch.Tensor, params: SamplingParams) -> torch.Tensor | None:
    """Weight below which tokens are dropped by top_k, then top_p; None when all are kept. ``weights`` [vocab]."""
    vocabulary = weights.shape[0]
    top_k = params.top_k if 0 < params.top_k < vocabulary else 0
    if params.top_p >= 1:
        return torch.topk(weights, top_k).values[-1] if top_k else None
    if top_k:
        best = torch.topk(weights, top_k).values
        mass = best.sum(dtype=torch.float64)
    else:
        best = torch.topk(weights, min(_CANDIDATES, vocabulary)).values
        mass = weights.sum(dtype=torch.float64)
    sums = best.cumsum(-1, dtype=torch.float64)
    wanted = params.top_p * mass
    if not top_k and sums[-1] < wanted:
        best = torch.sort(weights, descending=True).values
        sums = best.cumsum(-1, dtype=torch.float64)
    kept = int(torch.searchsorted(sums, wanted))  # the first whose sum reaches the wanted mass
    return best[min(kept, best.shape[0] - 1)]


def uniform(seed: int, position: int) -> float:
    """The draw in [0, 1) for one position of one seed."""
    generator = np.random.Generator(np.random.Philox(key=seed % (1 << 64), counter=[position, 0, 0, 0]))
    return float(generator.random())
