"""Reads the fields of a request that say how tokens are chosen. They are the same for every route that generates."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from typing import Any

from slotdeck.engine.core.request import SamplingParams
from slotdeck.engine.server.errors import invalid
from slotdeck.engine.server.fields import boolean, integer, number

MAX_TOP_LOGPROBS = 20
MAX_BIAS_ENTRIES = 1024
MAX_STOP_TOKENS = 64
MAX_BIAS = 100
REPETITION_PENALTY = (0.01, 10)
"""Wide enough for any use. Beyond it, fp32 logits could overflow."""

_TOKEN_ID = re.compile("0|[1-9][0-9]{0,8}")
_SEED_MASK = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class SamplingFields:
    """The valid sampling fields of a request."""

    max_tokens: int | None
    """None: as many as the context leaves."""
    min_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: tuple[tuple[int, float], ...]
    seed: int
    """Not negative. Drawn at random if the client gave none."""
    stop_token_ids: frozenset[int]
    ignore_eos: bool
    top_logprobs: int | None
    """None: no log-probabilities."""

    def stop_tokens(self, end_token_ids: frozenset[int]) -> frozenset[int]:
        """The tokens that end an answer. ``end_token_ids`` are those of the model."""
        return self.stop_token_ids if self.ignore_eos else self.stop_token_ids | end_token_ids

    def params(self, max_output_tokens: int, end_token_ids: frozenset[int], choice: int) -> SamplingParams:
        """The parameters of choice number ``choice``: at most ``max_output_tokens`` tokens, and a seed of its own."""
        return SamplingParams(
            max_tokens=max_output_tokens if self.max_tokens is None else min(self.max_tokens, max_output_tokens),
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias=self.logit_bias,
            min_tokens=self.min_tokens,
            seed=(self.seed + choice) & _SEED_MASK,
            stop_token_ids=self.stop_tokens(end_token_ids),
            top_logprobs=self.top_logprobs,
        )


def read_sampling(document: dict[str, Any], vocabulary: int) -> SamplingFields:
    """Validate the sampling fields. ``vocabulary`` is the number of token ids that the model has.

    Raises ApiError 400 that names the field.
    """
    alias = "max_tokens" if document.get("max_completion_tokens") is None else "max_completion_tokens"
    max_tokens = integer(document, alias, 1, None)
    min_tokens = integer(document, "min_tokens", 0, None) or 0
    if max_tokens is not None and min_tokens > max_tokens:
        raise invalid("min_tokens", f"'min_tokens' must be at most '{alias}', which is {max_tokens}")
    seed = integer(document, "seed", -(1 << 63), (1 << 63) - 1)
    return SamplingFields(
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        temperature=number(document, "temperature", 0, 2, 1.0),
        top_p=number(document, "top_p", 0, 1, 1.0),
        top_k=max(0, integer(document, "top_k", -1, (1 << 31) - 1) or 0),  # as in vLLM, -1 means all
        min_p=number(document, "min_p", 0, 1, 0.0),
        repetition_penalty=number(document, "repetition_penalty", *REPETITION_PENALTY, 1.0),
        presence_penalty=number(document, "presence_penalty", -2, 2, 0.0),
        frequency_penalty=number(document, "frequency_penalty", -2, 2, 0.0),
        logit_bias=_logit_bias(document.get("logit_bias"), vocabulary),
        seed=secrets.randbits(63) if seed is None else seed & _SEED_MASK,
        stop_token_ids=_stop_token_ids(document.get("stop_token_ids"), vocabulary),
        ignore_eos=boolean(document, "ignore_eos"),
        top_logprobs=_top_logprobs(document),
    )


def _logit_bias(value: Any, vocabulary: int) -> tuple[tuple[int, float], ...]:
    if value is None:
        return ()
    if not isinstance(value, dict) or len(value) > MAX_BIAS_ENTRIES:
        raise invalid(
            "logit_bias", f"'logit_bias' must be an object of at most {MAX_BIAS_ENTRIES} token ids with numbers"
        )
    biases = []
    for key, amount in value.items():
        if not _TOKEN_ID.fullmatch(key) or int(key) >= vocabulary:
            raise invalid("logit_bias", f"each key of 'logit_bias' must be a token id between 0 and {vocabulary - 1}")
        if type(amount) not in (int, float) or not -MAX_BIAS <= amount <= MAX_BIAS:
            allowed = f"a number between -{MAX_BIAS} and {MAX_BIAS}"
            raise invalid("logit_bias", f"each value of 'logit_bias' must be {allowed}")
        biases.append((int(key), float(amount)))
    return tuple(biases)


def _stop_token_ids(value: Any, vocabulary: int) -> frozenset[int]:
    ids = [] if value is None else value
    if not isinstance(ids, list) or len(ids) > MAX_STOP_TOKENS:
        raise invalid("stop_token_ids", f"'stop_token_ids' must be a list of at most {MAX_STOP_TOKENS} token ids")
    if not all(type(item) is int and 0 <= item < vocabulary for item in ids):
        raise invalid("stop_token_ids", f"each of 'stop_token_ids' must be an integer between 0 and {vocabulary - 1}")
    return frozenset(ids)


def _top_logprobs(document: dict[str, Any]) -> int | None:
    wanted = boolean(document, "logprobs")
    count = integer(document, "top_logprobs", 0, MAX_TOP_LOGPROBS)
    if count and not wanted:
        raise invalid("top_logprobs", "'top_logprobs' needs 'logprobs' to be true")
    return (count or 0) if wanted else None
