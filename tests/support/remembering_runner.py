"""A runner whose blocks remember which tokens were written to them, so that a token lost by a copy is noticed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from slotdeck.engine.core.step import ModelRunnerOutput, SchedulerOutput
from slotdeck.engine.settings import BLOCK_SIZE
from tests.support.loop_bench import StubRunner

Blocks = dict[int, dict[int, tuple[int, ...]]]
"""Block id to offset to the tokens up to and with the one whose KV is there: KV depends on all of them."""


class RememberedPool:
    """The tensors of a pool of ``num_blocks`` blocks."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.blocks: Blocks = defaultdict(dict)


class RememberingRunner(StubRunner):
    """Reads the KV of every earlier token in each step, as attention does, and notes what is wrong in ``lost``."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__()
        self.tensors = RememberedPool(num_blocks)
        self.lost: list[str] = []
        self.copies: list[int] = []
        """Blocks of each copy to another pool."""
        self.calls: list[str] = []
        """Names of calls, in order."""

    def run(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
        result = super().run(scheduler_output)
        self.calls.append("run")
        for row in scheduler_output.rows:
            request, blocks = row.request, self.tensors.blocks
            for position in range(row.start, row.start + row.count):
                block_id = request.block_ids[position // BLOCK_SIZE]
                if block_id >= self.tensors.num_blocks:
                    self.lost.append(f"{request.id} writes to block {block_id} of {self.tensors.num_blocks}")
                blocks[block_id][position % BLOCK_SIZE] = tuple(request.token_ids[: position + 1])
            for position in range(row.start):
                found = blocks[request.block_ids[position // BLOCK_SIZE]].get(position % BLOCK_SIZE)
                if found != tuple(request.token_ids[: position + 1]):
                    self.lost.append(f"{request.id} reads {found} at {position}")
        return result

    def allocate_pool(self, num_blocks: int) -> RememberedPool | None:  # type: ignore[override]
        self.calls.append("allocate_pool")
        self._check(num_blocks)
        return RememberedPool(num_blocks) if self.room_for_both else None

    def copy_blocks(self, pool: RememberedPool, sources: Mapping[int, int]) -> None:  # type: ignore[override]
        self.calls.append("copy_blocks")
        self.copies.append(len(sources))
        for new, present in sources.items():
            pool.blocks[new] = dict(self.tensors.blocks[present])

    def use_pool(self, pool: RememberedPool) -> RememberedPool:  # type: ignore[override]
        self.calls.append("use_pool")
        before, self.tensors = self.tensors, pool
        self.resized.append(pool.num_blocks)
        return before

    def resize(self, num_blocks: int, on_progress: Callable[[], None] = lambda: None) -> None:
        super().resize(num_blocks, on_progress)
        self.calls.append("resize")
        kept = {block_id: slots for block_id, slots in self.tensors.blocks.items() if block_id < num_blocks}
        self.tensors = RememberedPool(num_blocks)
        self.tensors.blocks.update(kept)

    def move(self, pairs: Sequence[tuple[int, int]]) -> None:
        super().move(pairs)
        self.calls.append("move")
        read = {destination: dict(self.tensors.blocks[source]) for source, destination in pairs}
        self.tensors.blocks.update(read)
