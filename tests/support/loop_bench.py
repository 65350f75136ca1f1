"""The engine loop with a runner without a model, whose steps the test releases one by one, and a client."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from slotdeck.engine.core.request import Request, SamplingParams, Timeline
from slotdeck.engine.core.step import ModelRunnerOutput, SchedulerOutput
from slotdeck.engine.loop.engine_loop import EngineLoop
from slotdeck.engine.loop.outputs import Output
from slotdeck.engine.settings import LiveSettings
from slotdeck.engine.telemetry.frame import EngineInfo
from tests.support.model_free import NoTensors

PATIENCE = 20.0


class StubRunner(NoTensors):
    """Its token is always the position. After :meth:`allow`, it computes only that many steps."""

    def __init__(self) -> None:
        super().__init__()
        self._changed = threading.Condition()
        self._allowed: float = float("inf")
        self._begun = 0
        self._done = 0
        self.faults = 0
        """How many of the next steps raise."""
        self.bad: set[str] = set()

    def run(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
        with self._changed:
            self._begun += 1
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self._done < self._allowed, PATIENCE)
            self._done += 1
        if self.faults:
            self.faults -= 1
            raise RuntimeError("injected fault")
        result = ModelRunnerOutput()
        for row in scheduler_output.rows:
            if row.request.id in self.bad:
                result.failures[row.request.id] = "NaN logits"
            elif row.samples:
                result.tokens[row.request.id] = row.request.num_tokens
        return result

    def allow(self, steps: float) -> None:
        with self._changed:
            self._allowed = self._done + steps
            self._changed.notify_all()

    def wait_inside(self) -> None:
        """Wait until all allowed steps are done and the next one is held back inside the runner."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._done == self._allowed and self._begun > self._done, PATIENCE)


class Client:
    """Collects what the loop delivers, and waits for conditions on it."""

    def __init__(self) -> None:
        self.tokens: dict[str, list[int]] = defaultdict(list)
        self.ends: dict[str, Output] = {}
        self.calls = 0
        self._changed = threading.Condition()

    def deliver(self, outputs: list[Output]) -> None:
        with self._changed:
            self.calls += 1
            for output in outputs:
                assert output.request_id not in self.ends, "something came after the end"
                self.tokens[output.request_id] += output.token_ids
                if output.finish_reason or output.error:
                    self.ends[output.request_id] = output
            self._changed.notify_all()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, PATIENCE), "it never happened"


class Bench:
    def __init__(
        self,
        step_timeout: float = PATIENCE,
        on_wedged: Callable[[str], None] | None = None,
        runner: StubRunner | None = None,
        **settings: Any,
    ) -> None:
        self.runner, self.client = runner or StubRunner(), Client()
        values: dict[str, Any] = {"slots": 2, "context": 256, "queue": 4, "budget": 16, "kv_tokens": 512} | settings
        self.loop = EngineLoop(
            runner=self.runner,
            settings=LiveSettings(**values),
            num_blocks=values["kv_tokens"] // 16,
            deliver=self.client.deliver,
            info=EngineInfo(trained_context=400),
            bytes_per_token=100,
            step_timeout=step_timeout,
            on_wedged=on_wedged,
        )

    def submit(self, name: str, prompt: int = 8, output: int = 5) -> None:
        now = self.loop.clock()
        self.loop.telemetry.count_received()
        self.loop.submit(
            Request(name, name, [1] * prompt, SamplingParams(max_tokens=output), Timeline(now, self.loop.clock()))
        )

    def steps(self, count: int) -> None:
        """Let exactly ``count`` steps pass. Returns when the next one is inside the runner."""
        self.runner.allow(count)
        self.runner.wait_inside()

    def release(self) -> None:
        self.runner.allow(float("inf"))

    def wait_for_end(self, *names: str) -> None:
        self.client.wait_for(lambda: all(name in self.client.ends for name in names))


def balanced(bench: Bench) -> bool:
    c = bench.loop.frame(0, 0)[0].counters
    ends = (c.finished or 0) + (c.cancelled or 0) + (c.failed or 0) + (c.rejected or 0) + (c.invalid or 0)
    return c.received == ends + bench.loop.num_in_flight
