"""Attention over the paged KV pool for one flat mixed batch.

What a step needs (which blocks to gather, what to mask) is laid out once and shared by all layers. Tokens that come
alone (decodes) are grouped by similar length, so that one long conversation does not pad twenty short ones; a prefill
chunk is a group of its own, in tiles. Faster kernels stand behind the same function: see KERNELS.

Blocks that a sliding window has left behind are not read, but stay in the pool: a block table names all tokens of its
request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from slotdeck.engine.model.kv_store import KVStore
from slotdeck.engine.settings import BLOCK_SIZE

TILE = 128
"""Query tokens of a chunk computed at once: bounds the memory for scores and skips keys that a tile cannot see."""

GROUP_COST = 24
"""What one more group costs, in gathered blocks (measured: about 1 ms a step, and 43 µs per block)."""


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive tokens of one sequence in the flat batch: positions ``start`` to ``start + count - 1``."""

    start: int
    count: int
    blocks: Sequence[int]
    """Block ids of the sequence from its first token on; at least enough for the last position."""


@dataclass(frozen=True, slots=True)
class Group:
    """Query tokens ``first`` to ``last - 1`` of the flat batch: ``size`` sequences with equally many tokens each."""

    first: int
    last: int
    size: int
    length: int
    """Keys per sequence, from the first block that one of its queries sees, padded to whole blocks of the longest."""
    block_rows: torch.Tensor
    """int64 [kv_heads x size x length / 16], see KVStore.block_rows."""
    masks: tuple[tuple[slice, torch.Tensor], ...]
    """Keys (of ``length``) that not every query of the group sees: those after a query, those before its window.

    With each slice what is added to its scores, 0 or -inf, [size, tokens, 1, keys] in the store's compute type.
    """


@dataclass(frozen=True, slots=True)
class AttentionLayout:
    """All groups of one step, covering the flat batch in order."""

    groups: tuple[Group, ...]


class PagedAttention(Protocol):
    """``query`` [T, heads, head_dim] fp32 against the pool's ``layer``; writes ``out`` [T, heads, head_dim]."""

    def __call__(
        self, query: torch.Tensor, store: KVStore, layer: int, layout: AttentionLayout, out: torch.Tensor
    ) -> None: ...


def sort_key(span: Span) -> tuple[bool, int]:
    """Order of the flat batch: tokens that come alone first, longest first; then chunks."""
    return span.count > 1, -_num_blocks(span)


def build_layout(
    spans: Sequence[Span], store: KVStore, device: torch.device, window: int | None = None
) -> AttentionLayout:
    """Lay out one step. ``spans`` are in the order of the flat batch, which is that of :func:`sort_key`.

    With a ``window``, the query at a position sees the keys at positions above position - window; else all before it.
    """
    singles = sum(1 for span in spans if span.count == 1)
    groups: list[Group] = []
    begin = 0
    while begin < singles:
        end = _group_end(spans, begin, singles, window)
        groups.append(_group(begin, spans[begin:end], store, device, window))
        begin = end
    first = singles
    for span in spans[singles:]:
        for offset in range(0, span.count, TILE):
            part = Span(span.start + offset, min(TILE, span.count - offset), span.blocks)
            groups.append(_group(first, [part], store, device, window))
            first += part.count
    return AttentionLayout(tuple(groups))


def _num_blocks(span: Span) -> int:
    return (span.start + span.count - 1) // BLOCK_SIZE + 1


def _blocks_left_out(span: Span, window: int | None) -> int:
    """Blocks at the beginning of a sequence that lie before the window of its first query, and so of all."""
    return 0 if window is None else max(0, span.start + 1 - window) // BLOCK_SIZE


def _group_end(spans: Sequence[Span], begin: int, end: int, window: int | None) -> int:
    """Extend a group until padding to its longest member would cost more than a new group."""
    longest = gathered = 0
    for index in range(begin, end):
        width = _num_blocks(spans[index]) - _blocks_left_out(spans[index], window)
        longest, gathered = max(longest, width), gathered + width
        if longest * (index + 1 - begin) - gathered > GROUP_COST:
            return index
    return end


def _group(first: int, spans: Sequence[Span], store: KVStore, device: torch.device, window: int | None) -> Group:
    size, count = len(spans), spans[0].count
    left_out = [_blocks_left_out(span, window) for span in spans]
    width = max(_num_blocks(span) - skipped for span, skipped in zip(spans, left_out, strict=True))
    blocks = np.empty((size, width), dtype=np.int64)
    for row, (span, skipped) in enumerate(zip(spans, left_out, strict=True)):
        needed = _num_blocks(span)
        if len(span.blocks) < needed:
            raise ValueError(f"a sequence of {span.start + count} tokens has only {len(span.blocks)} blocks")
        blocks[row, : needed - skipped] = span.blocks[skipped:needed]
        # Padding reads a block of its own sequence: another's may hold values that are not finite in this very step.
        blocks[row, needed - skipped :] = span.blocks[needed - 1]
    if blocks.max() >= store.num_blocks or blocks.min() < 0:
        raise ValueError(f"block ids must be 0 to {store.num_blocks - 1}")
    # From here on a key is counted from the first that was gathered of its sequence.
    starts = np.fromiter((span.start for span in spans), np.int64, size) - np.array(left_out) * BLOCK_SIZE
    length = width * BLOCK_SIZE
    keys = np.arange(length)
    last_seen = starts[:, None, None, None] + np.arange(count)[None, :, None, None]
    masks: list[tuple[slice, torch.Tensor]] = []

    def hide(part: slice, hidden: np.ndarray) -> None:
        mask = torch.from_numpy(np.where(hidden, np.float32(-np.inf), np.float32(0)))
        masks.append((part, mask.to(device, store.compute_dtype)))

    if (after := int(starts.min()) + 1) < length:
        hide(slice(after, length), keys[after:] > last_seen)
    if window is not None and (before := int(starts.max()) + count - window) > 0:
        hide(slice(0, before), keys[:before] <= last_seen - window)
    return Group(
        first=first,
        last=first + size * count,
        size=size,
        length=length,
        block_rows=store.block_rows(torch.from_numpy(blocks).to(device)),
        masks=tuple(masks),
    )


def reference_attention(
    query: torch.Tensor, store: KVStore, layer: int, layout: AttentionLayout, out: torch.Tensor
) -> None:
    """Paged attention in plain torch: gather, two batched products, softmax.

    Query heads that share a key-value head are rows of one matrix, so K and V are never repeated. K and V are read
    back as stored, those of the same step included.
    """
    tokens, heads, width = query.shape
    kv_heads, scale = store.num_kv_heads, width**-0.5
    shared = heads // kv_heads
    by_head = query.to(store.compute_dtype).view(tokens, kv_heads, shared, width).transpose(0, 1)
    target = out.view(tokens, kv_heads, shared, width)
    nothing = by_head.new_zeros(1, 1, 1)
    for group in layout.groups:
        batch, count = kv_heads * group.size, (group.last - group.first) // group.size
        rows = by_head[:, group.first : group.last].reshape(batch, count * shared, width)
        keys = store.gather_keys(layer, group.block_rows).view(batch, group.length, width)
        scores = torch.baddbmm(nothing, rows, keys.transpose(1, 2), beta=0, alpha=scale)
        by_query = scores.view(kv_heads, group.size, count, shared, group.length)
        for part, mask in group.masks:
            by_query[..., part] += mask
        weights = torch.softmax(scores, -1)
        values = store.gather_values(layer, group.block_rows).view(batch, group.length, width)
        mixed = torch.bmm(weights, values).view(kv_heads, group.size * count, shared, width)
        target[group.first : group.last] = mixed.transpose(0, 1)


KERNELS: dict[str, PagedAttention] = {}
"""Faster kernels by device type ("cpu", "cuda"); they register themselves. Without one, the reference serves."""


def attention_for(device: torch.device) -> PagedAttention:
    """The attention in force on ``device``."""
    return KERNELS.get(device.type, reference_attention)
