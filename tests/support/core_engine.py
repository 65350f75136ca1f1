"""A scheduler with a clock and a model that always says 5, for tests that drive it step by step."""

from __future__ import annotations

from typing import Any

from slotdeck.engine.core.block_pool import BlockPool
from slotdeck.engine.core.events import Event
from slotdeck.engine.core.invariants import check_scheduler
from slotdeck.engine.core.request import Request, SamplingParams, Timeline
from slotdeck.engine.core.scheduler import Scheduler
from slotdeck.engine.core.step import ModelRunnerOutput, SchedulerOutput
from slotdeck.engine.settings import LiveSettings


class Engine:
    """A scheduler, a clock that ticks once per call, and a model that always says 5."""

    def __init__(self, blocks: int = 64, **settings: Any) -> None:
        values = {"slots": 4, "context": 512, "queue": 4, "queue_share": 100, "budget": 64} | settings
        self.scheduler = Scheduler(LiveSettings(**values), BlockPool(blocks), block_bytes=100)
        self.now = 0.0
        self.events: list[Event] = []
        self.count = 0

    def add(self, prompt: int | list[int], output: int = 4, user: str = "user") -> Request:
        """Queue a prompt: this many tokens that no other prompt has, or exactly these."""
        request = self.make(prompt, output, user)
        self.scheduler.add(request)
        return request

    def make(self, prompt: int | list[int], output: int = 4, user: str = "user") -> Request:
        self.count += 1
        self.now += 1
        tokens = [1000 * self.count + i for i in range(prompt)] if isinstance(prompt, int) else list(prompt)
        params = SamplingParams(max_tokens=output)
        return Request(f"r{self.count}", user, tokens, params, Timeline(self.now, self.now))

    def change(self, **changes: Any) -> None:
        self.scheduler.update(self.scheduler.settings.model_copy(update=changes))

    def plan(self) -> SchedulerOutput:
        self.now += 1
        plan, events = self.scheduler.schedule(self.now)
        self.events += events
        return plan

    def commit(self, plan: SchedulerOutput, token: int = 5) -> None:
        self.now += 1
        tokens = {row.request.id: token for row in plan.rows if row.samples}
        self.events += self.scheduler.update_from_output(plan, ModelRunnerOutput(tokens=tokens), self.now)
        check_scheduler(self.scheduler)

    def step(self) -> SchedulerOutput:
        plan = self.plan()
        self.commit(plan)
        return plan

    def run_to_end(self) -> None:
        while self.scheduler.has_work:
            self.step()


def shares(plan: SchedulerOutput) -> dict[str, int]:
    return {row.request.id: row.count for row in plan.rows}
