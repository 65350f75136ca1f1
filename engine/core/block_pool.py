"""The KV pool as numbers: which blocks are free, which are held, which keep a prefix that may be used again.

The tensors are in ``model/kv_store``. A block is in one of three states::

    used         held by at least one block table
    evictable  held by nobody, but its content is published: a later prompt with the same tokens takes it over,
                 and whoever needs room takes it away, least recently used first
    free         holds nothing
"""

from __future__ import annotations

import hashlib
import heapq
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from slotdeck.engine.settings import BLOCK_SIZE


class PoolExhaustedError(RuntimeError):
    """More blocks were asked for than are free or evictable. Callers check ``num_available`` first."""


def blocks_for(num_tokens: int) -> int:
    """Blocks that hold ``num_tokens`` tokens."""
    return -(-num_tokens // BLOCK_SIZE)


@dataclass(frozen=True, slots=True)
class BlockHash:
    """Names the content of a full block: 16 tokens, all tokens before them, and who may reuse the KV."""

    digest: bytes
    parent: bytes
    """Digest of the block before; empty for the first block."""
    token_ids: tuple[int, ...]
    cache_salt: str
    """Only requests with the same salt share blocks: the user, or empty where all users share."""


def hash_block(parent: bytes, token_ids: Sequence[int], cache_salt: str) -> BlockHash:
    """The hash of a full block. Its digest is SHA-256 over (parent, cache_salt, tokens), so it stands for the whole
    prefix; a hit compares the tokens and the salt themselves all the same."""
    digest = hashlib.sha256(parent)
    digest.update(len(cache_salt).to_bytes(4, "little") + cache_salt.encode())
    digest.update(array("q", token_ids).tobytes())
    return BlockHash(digest.digest(), parent, tuple(token_ids), cache_salt)


def extend_block_hashes(hashes: list[BlockHash], token_ids: Sequence[int], num_blocks: int, cache_salt: str) -> None:
    """Append the hashes of further full blocks of ``token_ids`` until there are ``num_blocks``."""
    while len(hashes) < num_blocks:
        start = len(hashes) * BLOCK_SIZE
        parent = hashes[-1].digest if hashes else b""
        hashes.append(hash_block(parent, token_ids[start : start + BLOCK_SIZE], cache_salt))


def hash_prompt(token_ids: Sequence[int], cache_salt: str) -> list[BlockHash]:
    """The hashes of all full blocks of a prompt. Takes some 5 microseconds a block: call it outside any lock."""
    hashes: list[BlockHash] = []
    extend_block_hashes(hashes, token_ids, len(token_ids) // BLOCK_SIZE, cache_salt)
    return hashes


class BlockPool:
    """Refcounted blocks of :data:`~slotdeck.engine.settings.BLOCK_SIZE` tokens.

    Invariants: the refcount of a block is the number of block tables that hold it; used + evictable + free = total;
    low ids are handed out first, so that what is live stays at the low end of the tensors. A block with a refcount
    above 1 or with published content is full and computed, and is never written.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"a pool needs at least one block, not {num_blocks}")
        self._refcounts = [0] * num_blocks
        self._free = list(range(num_blocks))  # a heap: sorted lists are heaps
        self._evictable: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._content: dict[int, BlockHash] = {}
        self._by_digest: dict[bytes, int] = {}

    @property
    def num_blocks(self) -> int:
        return len(self._refcounts)

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_evictable(self) -> int:
        return len(self._evictable)

    @property
    def num_available(self) -> int:
        """Blocks that :meth:`allocate` can give: free ones, then evictable ones."""
        return len(self._free) + len(self._evictable)

    @property
    def num_used(self) -> int:
        return self.num_blocks - self.num_available

    @property
    def num_tokens(self) -> int:
        """Tokens the whole pool can hold."""
        return self.num_blocks * BLOCK_SIZE

    # -- holding ------------------------------------------------------------------------------------------------

    def allocate(self, count: int) -> list[int]:
        """``count`` block ids with refcount 1: free ones, lowest first, then the least recently used prefix blocks.

        Raises PoolExhaustedError and takes nothing.
        """
        if count > self.num_available:
            raise PoolExhaustedError(f"{count} blocks asked for, {self.num_available} of {self.num_blocks} available")
        while len(self._free) < count:
            self._forget(next(iter(self._evictable)))
        taken = [heapq.heappop(self._free) for _ in range(count)]
        for block_id in taken:
            self._refcounts[block_id] = 1
        return taken

    def share(self, block_ids: Iterable[int]) -> None:
        """One more table holds these blocks, which are full and computed; evictable ones are used again."""
        for block_id in block_ids:
            if self._refcounts[block_id] == 0 and block_id not in self._evictable:
                raise ValueError(f"block {block_id} is free and cannot be shared")
            self._evictable.pop(block_id, None)
            self._refcounts[block_id] += 1

    def release(self, block_ids: Sequence[int]) -> None:
        """One table less holds these blocks. The last one makes them free, or evictable if they are published.

        Later blocks of the table become older than earlier ones: a prefix without its beginning is of no use.
        """
        for block_id in reversed(block_ids):
            if self._refcounts[block_id] == 0:
                raise ValueError(f"block {block_id} is held by nobody")
            self._refcounts[block_id] -= 1
            if self._refcounts[block_id] == 0:
                if block_id in self._content:
                    self._evictable[block_id] = None
                else:
                    heapq.heappush(self._free, block_id)

    def refcount(self, block_id: int) -> int:
        return self._refcounts[block_id]

    def is_evictable(self, block_id: int) -> bool:
        return block_id in self._evictable

    # -- prefixes -----------------------------------------------------------------------------------------------

    def publish(self, block_id: int, content: BlockHash) -> None:
        """Say what a full, computed, held block contains. If another block already has it, that one stays the one."""
        if self._refcounts[block_id] == 0:
            raise ValueError(f"block {block_id} is held by nobody and cannot be published")
        if content.digest not in self._by_digest and block_id not in self._content:
            self._by_digest[content.digest] = block_id
            self._content[block_id] = content

    def match(self, prefix: Iterable[BlockHash]) -> list[int]:
        """The longest run of blocks, from the start of ``prefix``, that hold exactly this content."""
        found = []
        for wanted in prefix:
            block_id = self._by_digest.get(wanted.digest)
            if block_id is None or self._content[block_id] != wanted:
                break
            found.append(block_id)
        return found

    def drop_prefixes(self) -> None:
        """Forget all published content: evictable blocks become free, used ones stay with their holders."""
        for block_id in list(self._content):
            self._forget(block_id)

    def _forget(self, block_id: int) -> None:
        content = self._content.pop(block_id)
        del self._by_digest[content.digest]
        if block_id in self._evictable:
            del self._evictable[block_id]
            heapq.heappush(self._free, block_id)

    # -- size ---------------------------------------------------------------------------------------------------

    def grow(self, num_blocks: int) -> None:
        """Make the pool larger; the new blocks are free."""
        if num_blocks < self.num_blocks:
            raise ValueError(f"{num_blocks} blocks are fewer than {self.num_blocks}")
        self._free += range(self.num_blocks, num_blocks)  # still a heap: each is larger than all before it
        self._refcounts += [0] * (num_blocks - self.num_blocks)

    def blocks_with_content(self) -> list[int]:
        """Ids of the blocks that hold something worth keeping: used or evictable, in ascending order."""
        free = set(self._free)
        return [block_id for block_id in range(self.num_blocks) if block_id not in free]

    def plan_shrink(
        self,
        num_blocks: int,
        released: Sequence[Sequence[int]] = (),
        preferred: Mapping[int, int] | None = None,
    ) -> dict[int, int]:
        """The moves (block id to block id) that a shrink to ``num_blocks`` takes. Changes nothing.

        Used blocks beyond the new end move to places below it: first to free blocks, then to evictable ones, then to
        those that only the tables in ``released`` hold, which will be given back before. A move in ``preferred`` is
        kept where its place is still among these. No destination is also a source. Raises PoolExhaustedError when more
        blocks stay used than ``num_blocks``.
        """
        refcounts = self._refcounts.copy()
        for table in released:
            for block_id in table:
                refcounts[block_id] -= 1
        beyond = [block_id for block_id in range(num_blocks, self.num_blocks) if refcounts[block_id]]
        places = dict.fromkeys(block_id for block_id in sorted(self._free) if block_id < num_blocks)
        places |= dict.fromkeys(block_id for block_id in self._evictable if block_id < num_blocks)
        places |= dict.fromkeys(
            block_id for table in released for block_id in table if block_id < num_blocks and not refcounts[block_id]
        )
        if len(beyond) > len(places):
            used = sum(count > 0 for count in refcounts)
            raise PoolExhaustedError(f"{used} blocks are used, which {num_blocks} cannot hold")
        moves: dict[int, int] = {}
        wanted = preferred or {}
        for source in beyond:
            place = wanted.get(source)
            if place in places:
                moves[source] = place
                del places[place]
        rest = iter(places)
        return moves | {source: next(rest) for source in beyond if source not in moves}

    def shrink(self, num_blocks: int, moves: Mapping[int, int] | None = None) -> dict[int, int]:
        """Make the pool smaller and give the moves that :meth:`plan_shrink` planned (or ``moves``, if it did already).

        Evictable blocks beyond the new end, and those that give way to a move, are forgotten. Tables and tensors must
        follow the moves. Raises PoolExhaustedError, changing nothing, when more blocks are used than would be left.
        """
        if moves is None:
            moves = self.plan_shrink(num_blocks)
        for block_id in [block_id for block_id in self._evictable if block_id >= num_blocks]:
            self._forget(block_id)
        for source, destination in moves.items():
            if destination in self._evictable:
                self._forget(destination)
            self._refcounts[destination] = self._refcounts[source]
            if source in self._content:
                content = self._content.pop(source)
                self._content[destination] = content
                self._by_digest[content.digest] = destination
        taken = set(moves.values())
        self._free = sorted(block_id for block_id in self._free if block_id < num_blocks and block_id not in taken)
        del self._refcounts[num_blocks:]
        return dict(moves)

    # -- self-check ---------------------------------------------------------------------------------------------

    def check(self, tables: Iterable[Iterable[int]]) -> None:
        """Raise AssertionError unless refcounts equal the number of ``tables`` holding each block."""
        held = [0] * self.num_blocks
        for table in tables:
            for block_id in table:
                held[block_id] += 1
        wrong = {i: (held[i], count) for i, count in enumerate(self._refcounts) if held[i] != count}
        assert not wrong, f"block id -> (tables, refcount): {wrong}"
        assert len(set(self._free)) == len(self._free), "a block is free twice"
        assert not set(self._free) & set(self._evictable), "free and evictable"
        assert all(self._refcounts[block_id] == 0 for block_id in (*self._free, *self._evictable))
        used = sum(count > 0 for count in self._refcounts)
        assert used + len(self._evictable) + len(self._free) == self.num_blocks, "a block is lost"
        assert set(self._evictable) <= set(self._content), "evictable without content"
        assert not set(self._free) & set(self._content), "free with content"
        assert {content.digest: block_id for block_id, content in self._content.items()} == self._by_digest
