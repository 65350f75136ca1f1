"""A scheduler on a clock of its own whose steps are observed by telemetry, as the engine loop does it."""

from __future__ import annotations

from typing import Any

from slotdeck.engine.core.block_pool import BlockPool
from slotdeck.engine.core.events import Event
from slotdeck.engine.core.request import Request, SamplingParams, Timeline
from slotdeck.engine.core.scheduler import Scheduler
from slotdeck.engine.core.step import ModelRunnerOutput
from slotdeck.engine.settings import LiveSettings
from slotdeck.engine.telemetry.requests.detail import RequestDetail
from slotdeck.engine.telemetry.telemetry import Telemetry

DECODE, PER_PREFILL_TOKEN = 0.05, 0.01
"""Seconds of a step, and what each prefill token adds."""


class Run:
    """A scheduler on a clock of its own, observed as the loop does it."""

    def __init__(self, blocks: int = 64, **settings: Any) -> None:
        values = {"slots": 2, "context": 256, "queue": 8, "budget": 16} | settings
        self.now = 100.0
        self.telemetry = Telemetry(lambda: self.now, lambda: 1_000_000.0 + self.now)
        self.scheduler = Scheduler(LiveSettings(**values), BlockPool(blocks), block_bytes=100)
        self.events: list[Event] = []

    def submit(self, name: str, prompt: int, output: int) -> None:
        timeline = Timeline(self.now - 0.002, self.now)
        self.scheduler.add(Request(name, f"user-{name}", [7] * prompt, SamplingParams(max_tokens=output), timeline))

    def step(self, count: int = 1, extra: float = 0.0) -> None:
        for _ in range(count):
            plan, events = self.scheduler.schedule(self.now)
            self.observe(events)
            before = self.now
            self.now += DECODE + PER_PREFILL_TOKEN * plan.num_prefill_tokens + extra
            result = ModelRunnerOutput({row.request.id: 1 for row in plan.rows if row.samples})
            events = self.scheduler.update_from_output(plan, result, self.now)
            self.telemetry.observe_step(plan, self.now - before, self.now, len(result.tokens))
            self.observe(events)

    def observe(self, events: list[Event]) -> None:
        self.events += events
        self.telemetry.observe(events)

    def finish(self) -> None:
        while self.scheduler.has_work:
            self.step()

    def detail(self, name: str) -> RequestDetail:
        detail = self.telemetry.requests.detail(name)
        assert detail is not None
        return detail
