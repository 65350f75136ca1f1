"""Chooses tokens from logits, for all sampling rows of a step at once.

The random number for a position depends only on the request's seed and that position, and candidates are visited in the
order of their ids. So a request gives the same text whatever shares its batch, however its prompt is cut, and however
often it is preempted. Nothing is kept between steps: penalties are computed from the tokens of the request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from slotdeck.engine.core.request import Request, SamplingParams
from slotdeck.engine.core.step import TokenLogprobs

NOT_FINITE = "the model computed values that are not finite (NaN or infinity) for this request"

MIN_TEMPERATURE = 1e-4
"""Lower temperatures count as this one, which picks the most likely token unless others are equally likely."""

_PART = 256
"""Tokens of one part of the vocabulary. A draw first finds the part, then the token in it."""
_RUN = 64
"""Tokens of one run. Finding the largest weights of all first looks at only the largest weight of each run."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """One entry for each row of logits."""

    tokens: list[int]
    finite: list[bool]
    """False where the row holds NaN or infinity; its token means nothing."""
    logprobs: list[TokenLogprobs | None]
    """``None`` where the request asks for none or the row is not finite."""


def plainly_greedy(request: Request) -> bool:
    """Whether the next token is the one with the largest unchanged logit, and no log-probabilities are wanted."""
    p = request.sampling
    return (p.temperature <= 0 or p.top_k == 1) and p.top_logprobs is None and not _changes(request)


def plainly_drawn(request: Request) -> bool:
    """Whether the next token is drawn from unchanged logits, and no log-probabilities are wanted."""
    p = request.sampling
    return p.temperature > 0 and p.top_k != 1 and p.top_logprobs is None and not _changes(request)


def inverse_temperature(params: SamplingParams) -> float:
    """1 / temperature, bounded."""
    return 1 / max(params.temperature, MIN_TEMPERATURE)


def sample(logits: torch.Tensor, requests: Sequence[Request]) -> Sampled:
    """Choose the next token of ``requests[i]`` from ``logits[i]``.

    ``logits`` is fp32 [R, vocab] and stays as it is. Ties at the edge of top_k, top_p or min_p are kept.
    """
    finite = torch.isfinite(logits.sum(-1)).tolist()
    changed = _changed(logits, requests)
    tokens = changed.argmax(-1).tolist()
    params = [request.sampling for request in requests]
    drawn = [i for i, p in enumerate(params) if p.temperature > 0 and p.top_k != 1 and finite[i]]
    if drawn:
        rows = changed if len(drawn) == len(params) else changed[drawn]
        chosen = _draw(rows, [params[i] for i in drawn], [requests[i].num_tokens for i in drawn])
        for index, token in zip(drawn, chosen, strict=True):
            tokens[index] = token
    return Sampled(tokens, finite, _logprobs(logits, params, tokens, finite))


def _logprobs(
    logits: torch.Tensor, params: Sequence[SamplingParams], tokens: Sequence[int], finite: Sequence[bool]
) -> list[TokenLogprobs | None]:
    found: list[TokenLogprobs | None] = [None] * len(params)
    wanted = {i: p.top_logprobs for i, p in enumerate(params) if p.top_logprobs is not None and finite[i]}
    if not wanted:
        return found
    indices = list(wanted)
    rows = logits[indices]
    total = rows.logsumexp(-1, keepdim=True)
    best = rows.topk(min(max(wanted.values()), rows.shape[1]))
    chosen = rows.gather(1, torch.tensor([[tokens[i]] for i in indices], device=rows.device))
    columns = zip((chosen - total)[:, 0].tolist(), best.indices.tolist(), (best.values - total).tolist(), strict=True)
    for (index, count), (logprob, ids, values) in zip(wanted.items(), columns, strict=True):
        found[index] = TokenLogprobs(logprob, tuple(zip(ids[:count], values[:count], strict=True)))
    return found


class _Places:
    """Tokens of several rows as indices into the flattened logits, each with a value."""

    def __init__(self, vocabulary: int) -> None:
        self._vocabulary = vocabulary
        self._places: list[np.ndarray] = []
        self._values: list[np.ndarray] = []

    def add(self, row: int, ids: Sequence[int] | np.ndarray, values: float | Sequence[float] | np.ndarray) -> None:
        """``values`` is one value for all of ``ids``, or one for each. Ids outside the vocabulary are ignored."""
        tokens = np.asarray(ids, dtype=np.int64)
        known = (tokens >= 0) & (tokens < self._vocabulary)
        self._places.append(tokens[known] + row * self._vocabulary)
        self._values.append(np.broadcast_to(np.asarray(values, dtype=np.float32), tokens.shape)[known])

    def on(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Indices, int64, and values, fp32; None if there are none."""
        if not self._places:
            return None
        places, values = np.concatenate(self._places), np.concatenate(self._values)
        return torch.from_numpy(places).to(device), torch.from_numpy(values).to(device)


def _changed(logits: torch.Tensor, requests: Sequence[Request]) -> torch.Tensor:
    """Apply biases, penalties and the ban on stop tokens to the logits, in the order of SamplingParams.

    Returns a copy, or ``logits`` itself if no request asks for any of these.
    """
    rows = [(row, request) for row, request in enumerate(requests) if _changes(request)]
    if not rows:
        return logits
    bias, repeated, counted, barred = (_Places(logits.shape[1]) for _ in range(4))
    for row, request in rows:
        p = request.sampling
        if p.logit_bias:
            bias.add(row, [token for token, _ in p.logit_bias], [amount for _, amount in p.logit_bias])
        if p.repetition_penalty != 1:
            repeated.add(row, request.token_ids, p.repetition_penalty)
        if (p.presence_penalty or p.frequency_penalty) and request.num_output_tokens:
            ids, counts = np.unique(np.asarray(request.output_token_ids, dtype=np.int64), return_counts=True)
            counted.add(row, ids, -(p.presence_penalty + p.frequency_penalty * counts))
        if request.num_output_tokens < p.min_tokens:
            barred.add(row, list(p.stop_token_ids), -torch.inf)
    changed = logits.clone(memory_format=torch.contiguous_format)
    flat = changed.view(-1)
    if (added := bias.on(flat.device)) is not None:
        flat.index_add_(0, *added)
    if (seen := repeated.on(flat.device)) is not None:
        places, penalties = seen
        values = flat[places]
        flat[places] = torch.where(values > 0, values / penalties, values * penalties)
    if (taken := counted.on(flat.device)) is not None:
        flat.index_add_(0, *taken)
    if (never := barred.on(flat.device)) is not None:
        flat[never[0]] = never[1]
    return changed


def _changes(request: Request) -> bool:
    p = request.sampling
    return bool(
        p.logit_bias
        or p.repetition_penalty != 1
        or p.presence_penalty
        or p.frequency_penalty
        or request.num_output_tokens < p.min_tokens
    )


def _draw(logits: torch.Tensor, params: Sequence[SamplingParams], positions: Sequence[int]) -> list[int]:
    device = logits.device
    scale = torch.tensor([inverse_temperature(p) for p in params], dtype=torch.float32, device=device)
    # The most likely token gets weight 1, so that a small temperature cannot overflow.
    weights = (logits - logits.amax(-1, keepdim=True)).mul_(scale[:, None]).exp_()
    for index, p in enumerate(params):
        floor = _lowest_kept(weights[index], p)
        if floor is not None:
            # Zero every weight that is not above the number just below the floor, in place and in one pass.
            F.threshold(weights[index], float(np.nextafter(np.float32(floor), np.float32(0))), 0, inplace=True)
    draws = torch.tensor([uniform(p.seed, at) for p, at in zip(params, positions, strict=True)], dtype=torch.float64)
    parts = F.pad(weights, (0, -weights.shape[1] % _PART)).view(len(params), -1, _PART)
    part, rest = _walk(parts.sum(-1), draws.to(device))
    inside = parts[torch.arange(len(params), device=device), part]
    token, _ = _walk(inside, rest)
    return [int(value) for value in (part * _PART + token).tolist()]


def _walk(weights: torch.Tensor, draws: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Find the weight in which each draw in [0, 1) falls, and how far into that weight, again in [0, 1).

    It is the first weight of the row whose running sum exceeds the draw's share of the total, so never one that is 0.
    """
    sums = weights.cumsum(-1, dtype=torch.float64)
    wanted = draws[:, None] * sums[:, -1:]
    place = torch.searchsorted(sums, wanted, right=True).clamp_(max=weights.shape[1] - 1)
    size = weights.gather(1, place).double()
    into = (wanted - (sums.gather(1, place) - size)) / size
    return place[:, 0], into[:, 0].clamp(0, 1 - 1e-12)


def _lowest_kept(weights: torch.Tensor, params: SamplingParams) -> float | None:
    """Weight below which tokens are dropped; None if all are kept. ``weights`` is [vocab], and the largest is 1."""
    least = float(np.float32(params.min_p)) if params.min_p > 0 else None
    if params.top_p >= 1 and not 0 < params.top_k < weights.shape[0]:
        return least
    lowest = _edge(weights.cpu().numpy(), params)
    return lowest if least is None else max(lowest, least)


def _edge(weights: np.ndarray, params: SamplingParams) -> float:
    """Weight below which top_k and then top_p drop tokens. At least one of them is on."""
    if 0 < params.top_k < len(weights):
        best = _best(weights, params.top_k)
        return float(best[-1]) if params.top_p >= 1 else _where_mass_is(best, params.top_p * best.sum(dtype=np.float64))
    # Sorting the vocabulary would take longer than the model. So weights are classified by their leading 16 bits, the
    # class with the edge is found from the sum of each class, and only that class is sorted. (The weights are not
    # negative, so their bits have the same order as the weights.)
    classes = weights.view(np.int32) >> 16
    masses = np.bincount(classes, weights)[::-1].cumsum()
    wanted = params.top_p * masses[-1]
    above = min(int(np.searchsorted(masses, wanted)), len(masses) - 1)
    if above:
        wanted -= masses[above - 1]
    return _where_mass_is(np.sort(weights[classes == len(masses) - 1 - above])[::-1], wanted)


def _where_mass_is(best: np.ndarray, mass: float) -> float:
    """The weight at which the running sum reaches ``mass``. ``best`` is sorted, largest first."""
    edge = int(np.searchsorted(best.cumsum(dtype=np.float64), mass))
    return float(best[min(edge, len(best) - 1)])


def _best(weights: np.ndarray, count: int) -> np.ndarray:
    """The ``count`` largest weights, largest first."""
    runs = len(weights) // _RUN
    if count <= runs:
        # ``count`` runs have a weight of at least this size, so no smaller weight is among the ``count`` largest.
        tops = weights[: runs * _RUN].reshape(runs, _RUN).max(-1)
        weights = weights[weights >= np.partition(tops, runs - count)[runs - count]]
    return np.sort(weights)[: -count - 1 : -1]


def uniform(seed: int, position: int) -> float:
    """The random number in [0, 1) for a position of a seed: Philox 4x64 (Salmon et al., 2011), as numpy has it."""
    generator = np.random.Generator(np.random.Philox(key=seed % (1 << 64), counter=[position, 0, 0, 0]))
    return float(generator.random())
