"""What the numbers mean: the MET rows of the fault list, on a clock of our own where time matters."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from slotdeck.engine.core.events import Event
from slotdeck.engine.core.request import Request, SamplingParams, Timeline
from slotdeck.engine.core.step import ModelRunnerOutput, SchedulerOutput
from slotdeck.engine.loop.engine_loop import EngineLoop
from slotdeck.engine.settings import LiveSettings
from tests.support.loop_bench import PATIENCE, Bench, Client, StubRunner

API = Path(__file__).parents[2] / "engine" / "API.md"


class SlowRunner(StubRunner):
    """Each step takes ``seconds`` on the clock it owns."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.now, self.seconds = 100.0, seconds

    def run(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
        result = super().run(scheduler_output)
        self.now += self.seconds
        return result


class SlowBench(Bench):
    """A bench whose steps take ``seconds``, without waiting for them."""

    def __init__(self, seconds: float, **settings: int) -> None:
        self.slow = SlowRunner(seconds)
        self.runner, self.client = self.slow, Client()
        self.ended: list[Event] = []
        self.loop = EngineLoop(
            runner=self.slow,
            settings=LiveSettings(**({"slots": 2, "context": 256, "budget": 16, "kv_tokens": 512} | settings)),  # type: ignore[arg-type]
            num_blocks=32,
            deliver=self.client.deliver,
            step_timeout=PATIENCE,
            clock=lambda: self.slow.now,
        )
        self.loop.telemetry.on_ended = lambda event, wall: self.ended.append(event)
        self.runner.allow(0)
        self.loop.start()

    def go(self, *names: str) -> None:
        self.release()
        self.wait_for_end(*names)
        self.loop.stop()


def buckets(page: bytes, name: str) -> dict[float, float]:
    """Of a histogram: upper end to the number of samples in it and below."""
    return {
        float(sample.labels["le"]): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
        if sample.name == f"{name}_bucket"
    }


def test_met_03_times_land_in_their_buckets_and_reach_minutes() -> None:
    bench = SlowBench(7.0)
    bench.submit("a", prompt=40, output=5)  # three steps of 16 prompt tokens: 21 s to the first token
    bench.go("a")
    page = bench.loop.metrics_text()
    ttft, itl = (buckets(page, f"slotdeck_{name}_seconds") for name in ("time_to_first_token", "inter_token_latency"))
    assert (ttft[20], ttft[40]) == (0, 1)
    assert (itl[5], itl[10]) == (0, 4)
    assert max(bound for bound in ttft if bound != float("inf")) >= 600


def test_met_04_the_stamps_of_a_hundred_requests_are_in_order() -> None:
    bench = SlowBench(0.5, slots=8, queue=200)
    names = [str(number) for number in range(100)]
    for number, name in enumerate(names):
        bench.submit(name, prompt=1 + number % 40, output=1 + number % 7)
    bench.go(*names)
    assert len(bench.ended) == 100
    for event in bench.ended:
        line = event.request.timeline
        stamps = [line.arrival, line.queued, line.scheduled, line.first_token, line.last_token, line.ended]
        known = [stamp for stamp in stamps if stamp is not None]
        assert len(known) == 6
        assert known == sorted(known)
        assert (line.last_token or 0) - (line.first_token or 0) == pytest.approx(sum(event.request.gaps))


def test_met_07_ttft_counts_from_the_arrival_and_its_parts_are_shown_apart() -> None:
    bench = SlowBench(0.5, slots=1)
    bench.submit("first", output=20)
    bench.submit("second", output=3)
    bench.go("first", "second")
    second = bench.loop.telemetry.requests.detail("second")
    assert second is not None
    assert second.queue_wait == pytest.approx(20 * 0.5), "one step for each token of the first"
    assert second.prefill == pytest.approx(0.5)
    assert second.ttft == pytest.approx((second.intake or 0) + (second.queue_wait or 0) + (second.prefill or 0))
    assert bench.loop.frame(0, 0)[0].recent_ttft[-1] == pytest.approx(10.5)


def test_met_09_every_documented_metric_exists_and_every_metric_is_documented() -> None:
    documented = set(re.findall(r"`((?:slotdeck_|vllm:)[a-z_]+)`", API.read_text("utf-8")))
    bench = Bench()
    bench.loop.start()
    bench.submit("a")
    bench.wait_for_end("a")
    bench.loop.stop()
    frame, _ = bench.loop.frame(0, 0)
    host = frame.host.model_copy(update={"os_swap_in": 0.0, "os_swap_out": 0.0, "engine_memory": 1})
    page = bench.loop.telemetry.metrics.text(frame.model_copy(update={"host": host})).decode()
    families = list(text_string_to_metric_families(page))
    served = {family.name + {"counter": "_total", "info": "_info"}.get(family.type, "") for family in families}
    assert {name for name in served if not name.endswith("_created")} == documented


def test_met_09_prompt_tokens_are_whole_prompts_under_the_name_of_vllm_and_computed_ones_under_ours() -> None:
    bench = Bench()
    bench.loop.start()
    for name in ("first", "again"):
        now = bench.loop.clock()
        bench.loop.submit(Request(name, "user", [1] * 40, SamplingParams(max_tokens=5), Timeline(now, now)))
        bench.wait_for_end(name)
    page = bench.loop.metrics_text().decode()
    bench.loop.stop()
    assert "\nvllm:prompt_tokens_total 80.0" in page
    assert "\nslotdeck_prompt_tokens_total 48.0" in page
    assert "\nslotdeck_cached_tokens_total 32.0" in page


def test_met_09_a_prompt_that_is_computed_again_is_counted_once() -> None:
    bench = Bench(slots=3)
    bench.loop.start()
    for name in "abc":
        bench.submit(name, prompt=80, output=120)
    bench.wait_for_end(*"abc")
    page = bench.loop.metrics_text().decode()
    bench.loop.stop()
    assert bench.loop.frame(0, 0)[0].counters.preemptions
    assert "\nvllm:prompt_tokens_total 240.0" in page


def test_met_10_totals_survive_a_change_of_the_pool_and_the_change_is_counted() -> None:
    bench = Bench()
    bench.loop.start()
    bench.submit("a")
    bench.wait_for_end("a")
    before = bench.loop.frame(0, 0)[0].counters
    bench.loop.change({"kv_tokens": 1024}, revision=None, source="test")
    bench.loop.change({"kv_tokens": 512}, revision=None, source="test")
    after = bench.loop.frame(0, 0)[0].counters
    assert after == before.model_copy(update={"pool_resizes": 2})
    assert b"slotdeck_kv_pool_resizes_total 2.0" in bench.loop.metrics_text()
    bench.loop.stop()
