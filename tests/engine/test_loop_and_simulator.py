"""The simulator says what the engine would have told: the real loop, with its thread, telemetry and counters, on a
clock that its runner turns, serves the same scripts and measures the same times to the last digit.

What is left between a prediction and the truth is then only what a step costs, and what lies between client and queue.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest

from slotdeck.console.advice.simulator import Simulator
from slotdeck.console.advice.step_model import StepTimes
from slotdeck.console.advice.traffic import Edge, Traffic, User
from slotdeck.engine.core.block_pool import blocks_for
from slotdeck.engine.core.request import Request
from slotdeck.engine.core.step import ModelRunnerOutput, SchedulerOutput
from slotdeck.engine.loop.engine_loop import EngineLoop
from slotdeck.engine.loop.outputs import Output
from slotdeck.engine.settings import LiveSettings
from slotdeck.engine.telemetry.step_log import work_of
from tests.support.calibration import PRICES
from tests.support.model_free import NoTensors

EDGE = Edge(intake=0.003, intake_token=1e-5, turnaround=0.005)


class Stage(Simulator, NoTensors):
    """The simulator's users in front of a real loop, whose runner this is too. All but the start runs in the loop's
    thread: a step takes its price on the clock, and what arrives meanwhile is submitted meanwhile."""

    block_bytes = 1

    def __init__(self, settings: LiveSettings, users: list[User]) -> None:
        Simulator.__init__(self, settings, StepTimes(PRICES), EDGE)
        NoTensors.__init__(self)
        self.requests: dict[str, Request] = {}
        self.done = threading.Event()
        self.loop = EngineLoop(
            runner=self,
            settings=settings,
            num_blocks=blocks_for(settings.kv_tokens),
            deliver=self.deliver,
            step_timeout=3600.0,
            clock=lambda: self.now,
        )
        self.people = users

    def submit(self, request: Request) -> None:
        self.requests[request.id] = request
        self.loop.telemetry.count_received()
        self.loop.submit(request)

    def serve(self) -> None:
        # Before the thread runs, so that the clock is nobody else's.
        for user in self.people:
            self.begin(user)
        self.go_on()
        self.loop.start()
        assert self.done.wait(60), "the loop did not serve all"
        self.loop.stop()

    def run(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:  # type: ignore[override]
        end = self.now + self.times.draw(work_of(scheduler_output))
        self.receive(end)
        self.now = end
        return ModelRunnerOutput(
            {row.request.id: self.token_of(row.request) for row in scheduler_output.rows if row.samples}
        )

    def deliver(self, outputs: list[Output]) -> None:
        for output in outputs:
            if output.finish_reason is not None:
                self.finished(self.requests[output.request_id])
        self.receive(self.now)
        if self.loop.num_in_flight == 0:
            self.go_on()

    def go_on(self) -> None:
        if (time := self.next_arrival) is None:
            self.done.set()
        else:
            self.now = time
            self.receive(time)


@pytest.mark.parametrize("mode", ["continuous", "static", "serial"])
@pytest.mark.parametrize(
    ("kind", "users", "changes"),
    [
        ("chat", 2, {}),
        ("agent", 5, {}),
        ("chat", 20, {"slots": 4}),
        ("agent", 20, {"slots": 12, "kv_tokens": 4096}),
        ("documents", 5, {"slots": 5, "budget": 256, "kv_tokens": 2048, "preemption": "swap"}),
    ],
)
def test_the_loop_measures_what_the_simulator_predicts(kind: Any, users: int, changes: Any, mode: str) -> None:
    values = {"slots": 8, "context": 1024, "queue": 64, "kv_tokens": 8192, "mode": mode} | changes
    settings = LiveSettings(**values)
    traffic = Traffic(kind, users, 30.0, 1024)

    def people() -> list[User]:
        return [User(name, traffic.script(number), traffic.seconds) for number, name in enumerate(traffic.names())]

    stage = Stage(settings, people())
    stage.serve()
    counters, window = stage.loop.telemetry.counters(), stage.loop.telemetry.windows()[1]
    predicted = Simulator(settings, StepTimes(PRICES), EDGE).run(people())
    assert counters.finished == predicted.finished > users // 2
    assert counters.generated_tokens == predicted.generated
    assert counters.preemptions == predicted.preemptions
    assert counters.cached_tokens == predicted.cached_tokens
    assert counters.steps == predicted.steps
    assert window.ttft_p95 == pytest.approx(predicted.ttft_p95)
    assert window.itl_p50 == pytest.approx(predicted.itl_p50)
    assert window.itl_p95 == pytest.approx(predicted.itl_p95)
    assert window.itl_count == len(predicted.gaps)
    assert stage.result.seconds == pytest.approx(predicted.seconds)
