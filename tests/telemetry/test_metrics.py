"""The metrics page: each value under its own name, and nothing where a value is unknown."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pydantic import BaseModel

from slotdeck.engine.telemetry.frame import (
    CounterInfo,
    EngineInfo,
    Frame,
    HostInfo,
    LimitInfo,
    PoolInfo,
    WindowInfo,
)
from slotdeck.engine.telemetry.metrics import Metrics

NUMBERS = count(1001, 7)


def numbered(model: type[BaseModel], **values: Any) -> Any:
    """The model with another number in every numeric field."""
    kinds = ("int | None", "float | None")
    numeric = [name for name, field in model.model_fields.items() if str(field.annotation) in kinds]
    return model(**({name: next(NUMBERS) for name in numeric} | values))


def frame(**values: Any) -> Frame:
    made: dict[str, Any] = {
        "boot_id": "one", "sequence": 1, "time": 0.0, "running": 3, "waiting_count": 5,
        "engine": EngineInfo(version="1.2", model="smol", weights="int8", device="cpu"),
        "limits": numbered(LimitInfo, revision=1), "pool": numbered(PoolInfo), "counters": numbered(CounterInfo),
        "host": numbered(HostInfo), "minute": WindowInfo(seconds=60), "ten_minutes": WindowInfo(seconds=600),
    }  # fmt: skip
    return Frame(**(made | values))


def samples(page: bytes) -> dict[str, float]:
    """Value by name; samples with labels by name and labels."""
    found = {}
    for family in text_string_to_metric_families(page.decode()):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            name = f"{sample.name}{{{labels}}}" if labels else sample.name
            assert name not in found
            found[name] = sample.value
    return found


def test_each_number_of_the_frame_has_its_own_name() -> None:
    seen = frame()
    limits, pool, counters, host = seen.limits, seen.pool, seen.counters, seen.host
    assert pool.total
    assert pool.live is not None
    wanted = {
        "slotdeck_slots": limits.slots,
        "slotdeck_context_tokens": limits.context,
        "slotdeck_queue_depth": limits.queue,
        "slotdeck_prefill_budget_tokens": limits.budget,
        "slotdeck_requests_running": 3,
        "slotdeck_requests_waiting": 5,
        "slotdeck_kv_pool_tokens": pool.total,
        "slotdeck_kv_live_tokens": pool.live,
        "slotdeck_kv_cached_tokens": pool.cached,
        "slotdeck_kv_free_tokens": pool.free,
        "slotdeck_kv_bytes_per_token": pool.bytes_per_token,
        "slotdeck_kv_scale_bytes_per_token": pool.scale_bytes_per_token,
        "slotdeck_kv_swapped_bytes": pool.swapped,
        "slotdeck_resident_memory_bytes": host.engine_memory,
        "slotdeck_os_swap_in_bytes_per_second": host.os_swap_in,
        "slotdeck_os_swap_out_bytes_per_second": host.os_swap_out,
        "slotdeck_healthy": 1,
        "slotdeck_requests_received_total": counters.received,
        "slotdeck_requests_cancelled_total": counters.cancelled,
        "slotdeck_requests_gave_up_waiting_total": counters.gave_up_waiting,
        "slotdeck_requests_failed_total": counters.failed,
        "slotdeck_requests_rejected_total": counters.rejected,
        "slotdeck_requests_invalid_total": counters.invalid,
        "slotdeck_cached_tokens_total": counters.cached_tokens,
        "slotdeck_kv_swap_bytes_total": counters.kv_swap_bytes,
        "slotdeck_preemptions_total": counters.preemptions,
        "slotdeck_recomputed_tokens_total": counters.recomputed_tokens,
        "slotdeck_stalled_seconds_total": counters.stalled_seconds,
        "slotdeck_kv_pool_resizes_total": counters.pool_resizes,
        "slotdeck_prompt_tokens_total": counters.prompt_tokens,
        "slotdeck_generated_tokens_total": counters.generated_tokens,
        "slotdeck_steps_total": counters.steps,
        "vllm:num_requests_running": 3,
        "vllm:num_requests_waiting": 5,
        "vllm:kv_cache_usage_perc": pool.live / pool.total,
        "vllm:num_preemptions_total": counters.preemptions,
        "vllm:generation_tokens_total": counters.generated_tokens,
    }
    page = samples(Metrics().text(seen))
    assert {name: page[name] for name in wanted} == pytest.approx(wanted)
    numbers = [value for name, value in wanted.items() if name.startswith("slotdeck")]
    assert len(set(numbers)) == len(numbers), "two equal values would hide that they are exchanged"
    assert page["slotdeck_engine_info{device=cpu,model=smol,version=1.2,weights=int8}"] == 1
    ours = {name for name in page if name.startswith("slotdeck_") and "_bucket" not in name and "{" not in name}
    histograms = {name for name in ours if name.endswith(("_count", "_sum", "_created"))}
    assert ours - histograms == {name for name in wanted if name.startswith("slotdeck_")}


def test_an_unknown_number_is_left_out() -> None:
    bare = frame(
        limits=LimitInfo(), pool=PoolInfo(), counters=CounterInfo(), host=HostInfo(), running=None, waiting_count=0
    )
    page = samples(Metrics().text(bare))
    assert page["slotdeck_requests_waiting"] == 0, "nobody waits, which is known"
    for name in ("slotdeck_slots", "slotdeck_requests_running", "vllm:kv_cache_usage_perc", "slotdeck_steps_total"):
        assert name not in page
    assert "vllm:kv_cache_usage_perc" not in samples(Metrics().text(frame(pool=PoolInfo(total=0, live=0))))


@pytest.mark.parametrize(("health", "value"), [("ok", 1), ("draining", 1), ("starting", 0), ("fault", 0)])
def test_healthy_is_an_engine_that_serves(health: str, value: int) -> None:
    assert samples(Metrics().text(frame(health=health)))["slotdeck_healthy"] == value


def test_each_histogram_has_our_name_and_that_of_vllm() -> None:
    metrics = Metrics()
    observed = {
        "time_to_first_token_seconds": (metrics.ttft, 0.3),
        "inter_token_latency_seconds": (metrics.itl, 0.07),
        "request_queue_time_seconds": (metrics.queue_wait, 1.5),
        "request_prefill_time_seconds": (metrics.prefill, 0.9),
    }
    for histogram, seconds in observed.values():
        histogram.observe(seconds)
    metrics.step.observe(0.02)
    page = samples(metrics.text(frame()))
    for name, (_, seconds) in observed.items():
        for prefix in ("slotdeck_", "vllm:"):
            assert (page[f"{prefix}{name}_sum"], page[f"{prefix}{name}_count"]) == (seconds, 1)
    assert (page["slotdeck_step_seconds_sum"], page["slotdeck_step_seconds_count"]) == (0.02, 1)
    assert page["slotdeck_time_to_first_token_seconds_bucket{le=640.0}"] == 1


def test_ends_are_counted_by_their_reason() -> None:
    metrics = Metrics()
    for reason in ("stop", "length", "stop"):
        metrics.finished(reason)
    metrics.prompt_tokens.inc(12)
    page = samples(metrics.text(frame()))
    assert page["slotdeck_requests_finished_total{reason=stop}"] == 2
    assert page["slotdeck_requests_finished_total{reason=length}"] == 1
    assert page["vllm:request_success_total{finished_reason=stop}"] == 2
    assert page["vllm:prompt_tokens_total"] == 12
