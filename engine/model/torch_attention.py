"""Paged attention in plain torch. It serves on every device and defines the result for faster backends.

The metadata of a step (which blocks to gather, what to mask) is built once and shared by all layers. Decodes are
grouped by similar length, so that one long conversation does not pad twenty short ones. A prefill chunk is a group of
its own and is computed in tiles.

Blocks that lie before a sliding window are not read, but they stay in the pool: a block table names all tokens of its
request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from slotdeck.engine.model.attention_backend import Span
from slotdeck.engine.model.config import ModelConfig
from slotdeck.engine.model.kv_store import KVStore
from slotdeck.engine.settings import BLOCK_SIZE

TILE = 128
"""Query tokens of a chunk that are computed at once. This bounds the memory for scores and skips keys that no query of
a tile can see."""

GROUP_COST = 24
"""Cost of one more group, in gathered blocks (measured: about 1 ms per step and group, 43 µs per block)."""


@dataclass(frozen=True, slots=True)
class AttentionGroup:
    """Query tokens ``first`` to ``last - 1`` of the flat batch: ``size`` sequences with equally many tokens each."""

    first: int
    last: int
    size: int
    length: int
    """Keys per sequence: from the first block that any of its queries sees, padded to the longest sequence's blocks."""
    block_rows: torch.Tensor
    """int64 [kv_heads x size x length / 16], see KVStore.block_rows."""
    masks: tuple[tuple[slice, torch.Tensor], ...]
    """The keys (of ``length``) that some queries must not see: those after a query, and those before its window.

    Each slice comes with what is added to its scores: 0 or -inf, [size, tokens, 1, keys] in the store's compute type.
    """


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """What all layers of one step share."""

    groups: tuple[AttentionGroup, ...]
    """They cover the flat batch in order."""
    token_rows: torch.Tensor
    """int64 [T x kv_heads]: where K and V of the step are written, see KVStore.token_rows."""


class TorchAttention:
    """The attention backend in plain torch; see :class:`slotdeck.engine.model.attention_backend.AttentionBackend`.

    With a ``window``, the query at a position sees the keys at positions above position - window. Without one, it sees
    all keys up to its own position.
    """

    def __init__(self, device: torch.device, window: int | None = None) -> None:
        self._device = device
        self._window = window

    def allocate(self, config: ModelConfig, num_blocks: int, dtype: torch.dtype) -> KVStore:
        return KVStore(config, num_blocks, dtype, self._device)

    def build_metadata(self, spans: Sequence[Span], slot_mapping: Sequence[int], store: KVStore) -> AttentionMetadata:
        slots = torch.from_numpy(np.array(slot_mapping, np.int64)).to(self._device)
        return AttentionMetadata(build_groups(spans, store, self._window), store.token_rows(slots))

    def write(
        self, store: KVStore, layer: int, metadata: AttentionMetadata, keys: torch.Tensor, values: torch.Tensor
    ) -> None:
        store.write(layer, metadata.token_rows, keys, values)

    def attend(
        self, store: KVStore, layer: int, metadata: AttentionMetadata, query: torch.Tensor, out: torch.Tensor
    ) -> None:
        """Gather the blocks, then two batched products and a softmax.

        Query heads that share a KV head are rows of one matrix, so K and V are never repeated.
        """
        tokens, heads, head_dim = query.shape
        kv_heads, scale = store.num_kv_heads, head_dim**-0.5
        heads_per_kv_head = heads // kv_heads
        by_head = query.to(store.compute_dtype).view(tokens, kv_heads, heads_per_kv_head, head_dim).transpose(0, 1)
        target = out.view(tokens, kv_heads, heads_per_kv_head, head_dim)
        nothing = by_head.new_zeros(1, 1, 1)
        for group in metadata.groups:
            batch, count = kv_heads * group.size, (group.last - group.first) // group.size
            rows = by_head[:, group.first : group.last].reshape(batch, count * heads_per_kv_head, head_dim)
            keys = store.gather_keys(layer, group.block_rows).view(batch, group.length, head_dim)
            scores = torch.baddbmm(nothing, rows, keys.transpose(1, 2), beta=0, alpha=scale)
            by_query = scores.view(kv_heads, group.size, count, heads_per_kv_head, group.length)
            for part, mask in group.masks:
                by_query[..., part] += mask
            weights = torch.softmax(scores, -1)
            values = store.gather_values(layer, group.block_rows).view(batch, group.length, head_dim)
            mixed = torch.bmm(weights, values).view(kv_heads, group.size * count, heads_per_kv_head, head_dim)
            target[group.first : group.last] = mixed.transpose(0, 1)


def build_groups(spans: Sequence[Span], store: KVStore, window: int | None = None) -> tuple[AttentionGroup, ...]:
    """Group the spans of a step, which are in the order of ``sort_key``. Raises ValueError for a wrong block table."""
    singles = sum(1 for span in spans if span.count == 1)
    groups: list[AttentionGroup] = []
    begin = 0
    while begin < singles:
        end = _group_end(spans, begin, singles, window)
        groups.append(_group(begin, spans[begin:end], store, window))
        begin = end
    first = singles
    for span in spans[singles:]:
        for offset in range(0, span.count, TILE):
            part = Span(span.start + offset, min(TILE, span.count - offset), span.blocks)
            groups.append(_group(first, [part], store, window))
            first += part.count
    return tuple(groups)


def _skipped_blocks(span: Span, window: int | None) -> int:
    """Blocks at the beginning of a sequence that lie before the window of its first query, and so of all queries."""
    return 0 if window is None else max(0, span.start + 1 - window) // BLOCK_SIZE


def _group_end(spans: Sequence[Span], begin: int, end: int, window: int | None) -> int:
    """Extend a group until padding its members to the longest one costs more than a new group."""
    longest = gathered = 0
    for index in range(begin, end):
        width = spans[index].num_blocks - _skipped_blocks(spans[index], window)
        longest, gathered = max(longest, width), gathered + width
        if longest * (index + 1 - begin) - gathered > GROUP_COST:
            return index
    return end


def _group(first: int, spans: Sequence[Span], store: KVStore, window: int | None) -> AttentionGroup:
    size, count = len(spans), spans[0].count
    skipped = [_skipped_blocks(span, window) for span in spans]
    width = max(span.num_blocks - before for span, before in zip(spans, skipped, strict=True))
    blocks = np.empty((size, width), dtype=np.int64)
    for row, (span, before) in enumerate(zip(spans, skipped, strict=True)):
        needed = span.num_blocks
        if len(span.blocks) < needed:
            raise ValueError(f"a sequence of {span.start + count} tokens has only {len(span.blocks)} blocks")
        blocks[row, : needed - before] = span.blocks[before:needed]
        # Padding reads a block of its own sequence. Another sequence's block may hold values that are not finite, even
        # values written in this very step.
        blocks[row, needed - before :] = span.blocks[needed - 1]
    if blocks.max() >= store.num_blocks or blocks.min() < 0:
        raise ValueError(f"block ids must be 0 to {store.num_blocks - 1}")
    # From here on, keys are counted from the first gathered key of each sequence.
    starts = np.fromiter((span.start for span in spans), np.int64, size) - np.array(skipped) * BLOCK_SIZE
    length = width * BLOCK_SIZE
    keys = np.arange(length)
    last_seen = starts[:, None, None, None] + np.arange(count)[None, :, None, None]
    masks: list[tuple[slice, torch.Tensor]] = []

    def hide(part: slice, hidden: np.ndarray) -> None:
        mask = torch.from_numpy(np.where(hidden, np.float32(-np.inf), np.float32(0)))
        masks.append((part, mask.to(store.device, store.compute_dtype)))

    if (after := int(starts.min()) + 1) < length:
        hide(slice(after, length), keys[after:] > last_seen)
    if window is not None and (before_all := int(starts.max()) + count - window) > 0:
        hide(slice(0, before_all), keys[:before_all] <= last_seen - window)
    return AttentionGroup(
        first=first,
        last=first + size * count,
        size=size,
        length=length,
        block_rows=store.block_rows(torch.from_numpy(blocks).to(store.device)),
        masks=tuple(masks),
    )
