"""The contract between the runner and a decoder: one flat batch goes in, logits and tokens come out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from slotdeck.engine.model.attention_backend import Span
from slotdeck.engine.model.config import ModelConfig
from slotdeck.engine.model.kv_store import KVStore


class Draw(NamedTuple):
    """How to draw one token. The draw depends on ``seed``, of which 64 bits count, and on ``position`` alone."""

    row: int
    """Row of the batch after which a token is wanted."""
    seed: int
    position: int
    inverse_temperature: float
    """1 / temperature."""
    top_k: int
    """Draw among this many most likely tokens; 0: all."""
    top_p: float
    """Draw among the most likely tokens that together reach this share of the probability; 1: all."""
    min_p: float
    """Draw among the tokens that are at least this likely, as a share of the most likely one's probability."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A flat batch: T tokens of any number of sequences.

    It holds plain numbers; each decoder copies them to where it computes.
    """

    token_ids: Sequence[int]
    """[T]"""
    positions: Sequence[int]
    """[T]"""
    slot_mapping: Sequence[int]
    """[T]: where K and V of each token go in the pool, block x 16 + offset."""
    attention_metadata: Any
    """The result of the decoder's ``build_attention_metadata``."""
    logit_rows: Sequence[int]
    """[R]: rows whose logits are needed."""
    greedy_rows: Sequence[int] = ()
    """[G]: rows that need only the most likely next token; empty unless the decoder ``samples``."""
    draws: Sequence[Draw] = ()
    """[D]: rows after which a token is to be drawn; empty unless the decoder ``samples``."""


@dataclass(frozen=True, slots=True)
class DecoderOutput:
    """The result of one step."""

    logits: torch.Tensor
    """fp32 [R, vocab]"""
    finite: np.ndarray
    """bool [T]: whether everything computed for a token is finite."""
    greedy: list[int]
    """G token ids: the first one with the largest logit; -1 where a logit is not finite."""
    drawn: list[int]
    """D token ids; -1 where a logit is not finite."""


class StepDecoder(Protocol):
    """What the runner needs from a decoder. A decoder is not thread-safe: it computes one step at a time."""

    config: ModelConfig
    samples: bool
    """Whether the decoder itself can choose a token that depends only on the logits and on how to draw."""
    kv_dtype: torch.dtype
    """Type of the KV pool that suits the decoder."""

    @property
    def backend_name(self) -> str:
        """What computes: "torch", or "native" and the instruction set."""
        ...

    def set_threads(self, threads: int) -> None:
        """Compute with this many threads. The number holds for the whole process."""
        ...

    def allocate_kv(self, num_blocks: int, dtype: torch.dtype) -> KVStore:
        """Allocate a KV pool that the decoder can read and write."""
        ...

    def build_attention_metadata(self, spans: Sequence[Span], slot_mapping: Sequence[int], store: KVStore) -> Any:
        """Prepare what attention needs in one step; see ``AttentionBackend.build_metadata``."""
        ...

    def forward(self, batch: Batch, store: KVStore) -> DecoderOutput:
        """Compute one step and write its K and V into ``store``."""
        ...

    def part_seconds(self) -> dict[str, float]:
        """Seconds that each part of ``forward`` has taken so far; empty if not measured. Any thread may ask."""
        ...
