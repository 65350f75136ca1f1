"""What settings and the size of the pool must leave room for; each refusal names the nearest value that would do."""

from __future__ import annotations

from collections.abc import Iterable

from slotdeck.engine.core.block_pool import blocks_for
from slotdeck.engine.core.request import Request
from slotdeck.engine.settings import BLOCK_SIZE, LiveSettings, SettingsError


def check_settings(settings: LiveSettings, num_blocks: int) -> None:
    """Raise SettingsError, naming reason and maximum, unless a pool of so many blocks can honour these settings."""
    if settings.context > num_blocks * BLOCK_SIZE:
        raise SettingsError(
            f"context {settings.context} is more than the whole KV pool: at most {num_blocks * BLOCK_SIZE} tokens, "
            "or make the pool larger first (kv_tokens)"
        )
    if settings.slots > num_blocks:
        raise SettingsError(f"slots {settings.slots} is more than the KV pool has blocks: at most {num_blocks}")


def max_waiting_per_user(settings: LiveSettings) -> int:
    """Requests of one user that may wait: their share of the queue, at least one."""
    return max(1, settings.queue * settings.queue_share // 100)


def min_blocks(settings: LiveSettings, accepted: Iterable[Request]) -> int:
    """The smallest pool that holds each accepted request, one at a time, and one full context."""
    largest = max((blocks_for(request.max_total_tokens) for request in accepted), default=0)
    return max(largest, blocks_for(settings.context), settings.slots)


def check_pool_size(num_blocks: int, settings: LiveSettings, accepted: Iterable[Request]) -> None:
    """Raise SettingsError, naming the smallest size, unless that fits into so many blocks."""
    least = min_blocks(settings, accepted)
    if num_blocks < least:
        raise SettingsError(
            f"kv_tokens {num_blocks * BLOCK_SIZE} is too small: at least {least * BLOCK_SIZE} tokens, for the "
            f"context of {settings.context}, {settings.slots} slots and the largest accepted request"
        )
