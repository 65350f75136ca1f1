"""Block tables of requests: taking blocks, reusing cached prefixes, publishing computed ones, giving all back."""

from __future__ import annotations

from slotdeck.engine.core.block_pool import BlockPool, blocks_for
from slotdeck.engine.core.request import Request, State
from slotdeck.engine.settings import BLOCK_SIZE


class BlockTables:
    """What requests hold of a pool. With ``prefix_cache`` a prompt takes over blocks that hold its beginning."""

    def __init__(self, pool: BlockPool, prefix_cache: bool) -> None:
        self.pool = pool
        self.prefix_cache = prefix_cache

    def reusable(self, request: Request) -> list[int]:
        """Blocks that hold its beginning already. Matched anew at each call, since the cache changes in between.

        The last known token is never among them: it must be computed for its logits.
        """
        limit = (request.num_tokens - 1) // BLOCK_SIZE
        found = self.pool.match(request.first_block_hashes(limit)) if self.prefix_cache else []
        parent = request.parent
        if parent is not None and parent.state is State.RUNNING and not parent.waits_for_parent:
            shared = parent.block_ids[: (request.num_prompt_tokens - 1) // BLOCK_SIZE]
            if parent.num_computed_tokens >= parent.num_prompt_tokens and len(shared) > len(found):
                return shared
        return found

    def cost(self, request: Request) -> int:
        """Blocks of those available now that its whole known length would take."""
        reused = self.reusable(request)
        return blocks_for(request.num_tokens) - len(reused) + sum(map(self.pool.is_evictable, reused))

    def take(self, request: Request) -> None:
        """Give it a table for its whole known length. What is reused counts as computed."""
        reused = self.reusable(request)
        self.pool.share(reused)  # before allocating, which may reclaim what nobody holds
        request.block_ids = reused + self.pool.allocate(blocks_for(request.num_tokens) - len(reused))
        request.num_computed_tokens = len(reused) * BLOCK_SIZE
        request.num_published = len(reused)

    def take_swapped(self, request: Request) -> None:
        """Give it blocks of its own for its whole known length; the content comes back from host memory."""
        request.block_ids = self.pool.allocate(blocks_for(request.num_tokens))
        request.num_computed_tokens = request.swapped_tokens
        request.num_published = 0

    def publish(self, request: Request) -> None:
        """Offer the blocks that have become full and computed as a prefix for others."""
        full = request.num_computed_tokens // BLOCK_SIZE
        if not self.prefix_cache or full <= request.num_published:
            return
        for index, content in enumerate(
            request.first_block_hashes(full)[request.num_published :], request.num_published
        ):
            self.pool.publish(request.block_ids[index], content)
        request.num_published = full

    def release(self, request: Request) -> None:
        self.pool.release(request.block_ids)
        request.block_ids = []
        request.num_computed_tokens = 0
        request.num_published = 0
