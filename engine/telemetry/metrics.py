"""The ``/metrics`` page: ``slotdeck_*`` in base units, and the vLLM names that existing dashboards read."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from slotdeck.engine.telemetry.frame import Frame

# On a small CPU the first token can take minutes, so the buckets reach ten minutes.
TTFT_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640)
ITL_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 2.5, 5, 10, 30, 80)


class _Shared:
    """One histogram under two names: ours and vLLM's."""

    def __init__(self, registry: CollectorRegistry, name: str, vllm: str, help: str, buckets: tuple[float, ...]):
        self._both = [Histogram(title, help, buckets=buckets, registry=registry) for title in (name, vllm)]

    def observe(self, seconds: float) -> None:
        for histogram in self._both:
            histogram.observe(seconds)


class Metrics:
    """Histograms are filled as things happen; all other values are read from a frame when the page is requested."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        shared = {
            "ttft": ("time_to_first_token_seconds", "arrival to first token", TTFT_BUCKETS),
            "itl": ("inter_token_latency_seconds", "gap between two tokens of one request", ITL_BUCKETS),
            "queue_wait": ("request_queue_time_seconds", "waiting queue to first admission", TTFT_BUCKETS),
            "prefill": ("request_prefill_time_seconds", "first admission to first token", TTFT_BUCKETS),
        }
        made = {
            key: _Shared(self._registry, f"slotdeck_{name}", f"vllm:{name}", help, buckets)
            for key, (name, help, buckets) in shared.items()
        }
        self.ttft, self.itl = made["ttft"], made["itl"]
        self.queue_wait, self.prefill = made["queue_wait"], made["prefill"]
        self.step = Histogram("slotdeck_step_seconds", "length of a step", buckets=ITL_BUCKETS, registry=self._registry)
        ended = "requests that ended by themselves"
        self._finished = [
            Counter("slotdeck_requests_finished", ended, ["reason"], registry=self._registry),
            Counter("vllm:request_success", ended, ["finished_reason"], registry=self._registry),
        ]
        prompts = "tokens of prompts whose first token was given, cached ones included, none of them twice"
        self.prompt_tokens = Counter("vllm:prompt_tokens", prompts, registry=self._registry)

    def finished(self, reason: str) -> None:
        for counter in self._finished:
            counter.labels(reason).inc()

    def text(self, frame: Frame) -> bytes:
        """The page in Prometheus' text format."""
        page = CollectorRegistry()
        page.register(_FrameCollector(frame))
        return generate_latest(page) + generate_latest(self._registry)


class _FrameCollector(Collector):
    def __init__(self, frame: Frame) -> None:
        self._frame = frame

    def collect(self) -> Iterator[Metric]:
        frame = self._frame
        engine, limits, pool, counters, host = frame.engine, frame.limits, frame.pool, frame.counters, frame.host
        info = {"version": engine.version, "model": engine.model, "weights": engine.weights, "device": engine.device}
        yield InfoMetricFamily("slotdeck_engine", "what serves", {key: str(value) for key, value in info.items()})
        used = None if not pool.total or pool.live is None else pool.live / pool.total
        gauges: dict[str, tuple[str, float | None]] = {
            "slotdeck_slots": ("slots in force", limits.slots),
            "slotdeck_context_tokens": ("most tokens one request may use", limits.context),
            "slotdeck_queue_depth": ("requests that may wait", limits.queue),
            "slotdeck_prefill_budget_tokens": ("prefill tokens in one step", limits.budget),
            "slotdeck_requests_running": ("requests in a slot, preempted ones left out", frame.running),
            "slotdeck_requests_waiting": ("requests in the queue", frame.waiting_count),
            "slotdeck_kv_pool_tokens": ("size of the KV pool", pool.total),
            "slotdeck_kv_live_tokens": ("tokens of the pool held by requests", pool.live),
            "slotdeck_kv_cached_tokens": ("tokens of the pool held as reclaimable prefix", pool.cached),
            "slotdeck_kv_free_tokens": ("tokens of the pool that are free", pool.free),
            "slotdeck_kv_bytes_per_token": ("bytes of one token's KV", pool.bytes_per_token),
            "slotdeck_kv_scale_bytes_per_token": ("bytes of its int8 scales", pool.scale_bytes_per_token),
            "slotdeck_kv_swapped_bytes": ("KV of preempted requests in host memory", pool.swapped),
            "slotdeck_resident_memory_bytes": ("memory of the engine process", host.engine_memory),
            "slotdeck_os_swap_in_bytes_per_second": ("what vmstat prints as si", host.os_swap_in),
            "slotdeck_os_swap_out_bytes_per_second": ("what vmstat prints as so", host.os_swap_out),
            "slotdeck_healthy": ("1 while the engine serves", float(frame.health in ("ok", "draining"))),
            "vllm:num_requests_running": ("requests in a slot", frame.running),
            "vllm:num_requests_waiting": ("requests in the queue", frame.waiting_count),
            "vllm:kv_cache_usage_perc": ("share of the KV pool held by requests, 0 to 1", used),
        }
        for name, (help, value) in gauges.items():
            if value is not None:
                yield GaugeMetricFamily(name, help, value=value)
        totals: dict[str, tuple[str, float | None]] = {
            "slotdeck_requests_received": ("requests that arrived", counters.received),
            "slotdeck_requests_cancelled": ("requests whose client left or that the admin stopped", counters.cancelled),
            "slotdeck_requests_gave_up_waiting": ("cancelled before a slot was free", counters.gave_up_waiting),
            "slotdeck_requests_failed": ("requests ended by a fault of the engine", counters.failed),
            "slotdeck_requests_rejected": ("requests refused with 503", counters.rejected),
            "slotdeck_requests_invalid": ("requests refused as the client's own fault (4xx)", counters.invalid),
            "slotdeck_cached_tokens": ("prompt tokens found in the prefix cache", counters.cached_tokens),
            "slotdeck_kv_swap_bytes": ("KV moved by preemption, both ways", counters.kv_swap_bytes),
            "slotdeck_preemptions": ("times a request lost its KV", counters.preemptions),
            "slotdeck_recomputed_tokens": ("tokens computed again after a preemption", counters.recomputed_tokens),
            "slotdeck_stalled_seconds": ("time that requests spent preempted", counters.stalled_seconds),
            "slotdeck_kv_pool_resizes": ("times the KV pool grew or shrank", counters.pool_resizes),
            "slotdeck_prompt_tokens": ("prefill tokens computed", counters.prompt_tokens),
            "slotdeck_generated_tokens": ("tokens generated", counters.generated_tokens),
            "slotdeck_steps": ("steps of the engine", counters.steps),
            "vllm:num_preemptions": ("times a request lost its KV", counters.preemptions),
            "vllm:generation_tokens": ("tokens generated", counters.generated_tokens),
        }
        for name, (help, total) in totals.items():
            if total is not None:
                yield CounterMetricFamily(name, help, value=total)
