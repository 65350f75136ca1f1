"""The ledger of KV swap: what preempted requests hold in host memory, and which copies the next step must make."""

from __future__ import annotations

from slotdeck.engine.core.block_pool import blocks_for
from slotdeck.engine.core.request import Request
from slotdeck.engine.core.step import Swap


class SwapLedger:
    """Host memory in blocks of ``block_bytes``. The copies themselves are made by the runner, at the step's start."""

    def __init__(self, block_bytes: int) -> None:
        self._block_bytes = block_bytes
        self._blocks = 0
        self.outs: list[Swap] = []
        self.ins: list[Swap] = []
        self.drops: list[str] = []

    @property
    def num_bytes(self) -> int:
        """Host memory held now."""
        return self._blocks * self._block_bytes

    def swap_out(self, request: Request, space: int) -> int:
        """Have the computed blocks of a running request copied out, if ``space`` bytes allow it; gives the bytes."""
        blocks = blocks_for(request.num_computed_tokens)
        if not blocks or (self._blocks + blocks) * self._block_bytes > space:
            return 0
        request.swapped_tokens = request.num_computed_tokens
        return self._move(request, request.block_ids[:blocks], self.outs, blocks)

    def swap_in(self, request: Request) -> int:
        """Have them copied back into its new table; gives the bytes."""
        blocks = blocks_for(request.swapped_tokens)
        request.swapped_tokens = 0
        return self._move(request, request.block_ids[:blocks], self.ins, -blocks)

    def drop(self, request: Request) -> None:
        """It has ended: its copy is not needed any more."""
        if request.swapped_tokens:
            self.drops.append(request.id)
            self._blocks -= blocks_for(request.swapped_tokens)
            request.swapped_tokens = 0

    def discard_kv(self, preempted: list[Request]) -> None:
        """Host copies cannot be trusted or are gone: whoever had one will be computed again."""
        for request in preempted:
            request.lost_tokens += request.swapped_tokens
            request.swapped_tokens = 0
        self._blocks = 0
        self.forget_moves()

    def forget_moves(self) -> None:
        """The copies asked for are on their way with a step."""
        self.outs, self.ins, self.drops = [], [], []

    def check(self, preempted: list[Request]) -> None:
        """Raise AssertionError unless the ledger agrees with the requests."""
        assert sum(blocks_for(request.swapped_tokens) for request in preempted) == self._blocks

    def _move(self, request: Request, block_ids: list[int], moves: list[Swap], blocks: int) -> int:
        moves.append(Swap(request.id, tuple(block_ids)))
        self._blocks += blocks
        moved = len(block_ids) * self._block_bytes
        request.swapped_bytes += moved
        return moved
