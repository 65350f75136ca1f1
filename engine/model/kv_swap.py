"""Copies of preempted requests' KV in host memory, byte for byte.

When a request is preempted, its blocks are swapped out. When it resumes, they are swapped in to any free blocks, so
that nothing is computed again. With a GPU the host memory is pinned, so that copies run at the speed of the bus.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from slotdeck.engine.core.step import Swap
from slotdeck.engine.model.kv_store import KVStore


class HostCopies:
    """One buffer for each request that was swapped out of ``store``. Only the thread that runs the steps uses it."""

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
        """Copy blocks of all layers to host memory, and return the number of bytes.

        An older copy of the same request is dropped first. Raises ValueError for blocks outside the pool, and what
        torch raises if memory runs out; then no copy of this request is held.
        """
        self.drop(swap.request_id)
        rows, on_cpu = self._store.rows_of(swap.block_ids), self._store.device.type == "cpu"
        size = len(swap.block_ids) * self._store.block_bytes
        copy = torch.empty(size, dtype=torch.uint8, pin_memory=not on_cpu)
        for view, part in self._parts(copy, len(rows)):
            if on_cpu:
                torch.index_select(view, 0, rows, out=part)
            else:
                # Later writes to the blocks are on the same stream, so they wait for this copy by themselves.
                part.copy_(view.index_select(0, rows), non_blocking=True)
        self._copies[swap.request_id] = copy
        return size

    def swap_in(self, swap: Swap) -> int:
        """Copy a request's KV back into these blocks, drop the copy, and return the number of bytes.

        The blocks are in the order in which they were swapped out. Raises ValueError if there is no copy, if it has
        another number of blocks, and for blocks outside the pool; then the copy is kept.
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
        """Drop one request's copy, if there is one."""
        self._copies.pop(request_id, None)

    def forget(self) -> None:
        """Drop every copy."""
        self._copies.clear()

    def _parts(self, copy: torch.Tensor, rows: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Each view of the store, with the part of the buffer for its rows."""
        begin = 0
        for view in self._store.blocks():
            end = begin + rows * view.shape[1] * view.element_size()
            yield view, copy[begin:end].view(view.dtype).view(rows, -1)
            begin = end
