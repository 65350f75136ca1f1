"""KV of preempted requests in host memory, byte for byte.

Blocks go out when their request loses its place in the pool and come back, into whatever blocks are free then, when it
resumes: nothing of it is computed again. On a GPU the host memory is pinned, so that copies run at the bus's speed.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from slotdeck.engine.core.step import Swap
from slotdeck.engine.model.kv_store import KVStore


class HostCopies:
    """What was swapped out of ``store``, by request id: one buffer each. Used from the thread that runs the steps."""

    def __init__(self, store: KVStore) -> None:
        self._store = store
        self._copies: dict[str, torch.Tensor] = {}

    def use(self, store: KVStore) -> None:
        """Copy from and to ``store`` from now on. It has another number of blocks, and blocks of the same size."""
        self._store = store

    @property
    def bytes_held(self) -> int:
        """Bytes of host memory, scales included."""
        return sum(copy.nbytes for copy in self._copies.values())

    def swap_out(self, swap: Swap) -> int:
        """Copy blocks of all layers to host memory; a copy held before under this id is replaced. Bytes copied.

        Raises ValueError for blocks outside the pool. When memory runs out, nothing is held for this request.
        """
        self.drop(swap.request_id)
        rows, on_cpu = self._store.rows_of(swap.block_ids), self._store.device.type == "cpu"
        size = len(swap.block_ids) * self._store.block_bytes
        copy = torch.empty(size, dtype=torch.uint8, pin_memory=not on_cpu)
        for view, part in self._parts(copy, len(rows)):
            if on_cpu:
                torch.index_select(view, 0, rows, out=part)
            else:
                # This copy and later writes to the blocks follow each other on one stream: no need to wait for it.
                part.copy_(view.index_select(0, rows), non_blocking=True)
        self._copies[swap.request_id] = copy
        return size

    def swap_in(self, swap: Swap) -> int:
        """Copy a request's KV back into these blocks, in the order in which they went out, and forget it. Bytes copied.

        Raises ValueError when there is no copy, when it has another number of blocks, and for blocks outside the pool;
        then the copy is kept.
        """
        copy = self._copies.get(swap.request_id)
        if copy is None:
            raise ValueError(f"there is no host copy of request {swap.request_id}")
        held, rows = copy.nbytes // self._store.block_bytes, self._store.rows_of(swap.block_ids)
        if len(swap.block_ids) != held:
            raise ValueError(f"the host copy of request {swap.request_id} has {held} blocks, not {len(swap.block_ids)}")
        for view, part in self._parts(copy, len(rows)):
            view.index_copy_(0, rows, part.to(view.device, non_blocking=True))
        del self._copies[swap.request_id]
        return copy.nbytes

    def drop(self, request_id: str) -> None:
        """Forget one request's copy, if there is one."""
        self._copies.pop(request_id, None)

    def forget(self) -> None:
        """Forget every copy."""
        self._copies.clear()

    def _parts(self, copy: torch.Tensor, rows: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Each view of the store beside the part of the buffer that holds rows of it."""
        begin = 0
        for view in self._store.blocks():
            end = begin + rows * view.shape[1] * view.element_size()
            yield view, copy[begin:end].view(view.dtype).view(rows, -1)
            begin = end
