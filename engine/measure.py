"""Measures how long steps take in the runner alone, without a server or clients.

This is one half of a calibration. The console measures the other half through a server under load. The same run also
measures how fast the machine can read memory and multiply, so that the speed of the steps can be compared with these
limits.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from slotdeck.engine.core.block_pool import blocks_for
from slotdeck.engine.core.request import Request, SamplingParams, Timeline
from slotdeck.engine.core.step import ScheduledRequest, SchedulerOutput
from slotdeck.engine.model.errors import ModelError
from slotdeck.engine.model.hardware import available_memory
from slotdeck.engine.model.load import LoadedModel, load_model
from slotdeck.engine.model.runner import Runner, kv_type
from slotdeck.engine.settings import BLOCK_SIZE, StartSettings
from slotdeck.engine.telemetry.step_log import work_of

PROMPT = 512
"""Tokens of the prompt whose prefill is measured, and of the context that a single decode reads. At most half of the
model's context."""
DECODES = (1, 2, 4, 8, 16, 32)
"""Sequences of the measured decode steps."""
PREFILLS = (16, 64, 128, 256, 512)
"""Tokens of the measured prefill chunks."""
CONTEXTS = (64, 1024)
"""Tokens before the measured ones."""
REPEATS = 5
"""Times that a measurement is repeated, at most."""
PLAN_SECONDS = 1.5
"""Once a step has taken this long in all, it is not repeated: a large model on a small machine is slow. Every step runs
at least once."""
GRID_SECONDS = 40.0
"""Time for steps of many kinds. Those for which no time remains, the largest ones, are left out."""
POOL_TOKENS = 20_000
"""Size of the KV pool, if half of the free memory can hold it."""
READ_BYTES = 256 << 20
"""Bytes that are read to measure the memory: more than any cache holds."""
FACTOR = 2048
"""Size of the matrices that are multiplied on a CPU, [FACTOR / 4, FACTOR] x [FACTOR, FACTOR]. On a GPU, all are
twice FACTOR."""


def measure(settings: StartSettings, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure one half of a calibration: the speed of one stream, steps of many kinds, and the limits of the machine.

    ``say`` gets a line when each part begins. Rates are in tokens, bytes or operations per second; ``steps`` are pairs
    of what a step computes (``work_of``) and its seconds. Raises ModelError if the model cannot be loaded or the memory
    beside the weights is too small.
    """
    say(f"loading {settings.model}")
    model = load_model(settings.model, weights=settings.weights, device=settings.device)
    per_token = model.config.token_bytes(kv_type(settings.kv_dtype, model.kv_dtype))
    pool = min(POOL_TOKENS, available_memory(model.device) // (2 * per_token))
    prompt = min(PROMPT, model.config.max_positions // 2)
    if pool < 2 * prompt:
        raise ModelError(
            f"to measure, the KV pool must hold {2 * prompt} tokens, but the free memory is enough for only {pool}"
        )
    runner = Runner(model, blocks_for(pool), settings.kv_dtype, settings.threads)
    bench = _Steps(model, runner)
    say("measuring one stream")
    bench.median(bench.plan([prompt]))  # warms up: the first steps find cold caches
    decode = bench.median(bench.plan([prompt]))
    budget = min(prompt, 512 if model.device.type == "cuda" else 64)
    prefill = sum(bench.median(bench.plan([], [(start, budget)])) for start in range(0, prompt, budget))
    say("measuring steps of many kinds")
    steps = [[list(work_of(plan)), seconds] for plan, seconds in bench.many()]
    say("measuring the machine")
    torch.set_num_threads(runner.threads)
    config = model.config
    # Parameters that prefill multiplies: it only looks up rows of the embedding, and it needs the head for the last
    # token alone.
    multiplied = config.num_parameters - config.vocab_size * config.hidden_size * (1 if config.tie_embeddings else 2)
    read = _bytes_read(model, prompt * per_token)
    return {
        "model": model.id,
        "weights": model.weights,
        "kv_dtype": runner.kv_dtype,
        "device": str(model.device),
        "threads": runner.threads,
        "kernels": model.kernels,
        "weight_bytes": model.weight_bytes,
        "kv_bytes_per_token": per_token,
        "prefill_chunk": budget,
        "prefill_per_second": len(range(0, prompt, budget)) * budget / prefill,
        "decode_per_second": 1 / decode,
        "steps": steps,
        "memory": {"used": read / decode, "most": _read_speed(model.device)},
        "arithmetic": {
            "used": 2 * multiplied * prompt / bench.median(bench.plan([], [(0, prompt)])),
            "most": _multiply_speed(model),
        },
        "kv_copy_bytes_per_second": _copy_speed(model.device),
    }


class _Steps:
    """Plans steps of random requests, and measures how long the runner takes for them."""

    def __init__(self, model: LoadedModel, runner: Runner) -> None:
        self._runner = runner
        self._vocabulary = model.config.vocab_size
        self._most = model.config.max_positions
        self._random = random.Random("measure")

    def plan(self, contexts: list[int], prefills: list[tuple[int, int]] = []) -> SchedulerOutput | None:  # noqa: B006
        """A step that decodes one token after each context (in tokens) and prefills each chunk (start, tokens).

        Each request has its own blocks. Returns ``None`` if the pool or the model's context is too small.
        """
        free = iter(range(self._runner.num_blocks))
        rows = []
        for number, (start, count) in enumerate([*((context, 1) for context in contexts), *prefills]):
            length = start + count
            request = Request(
                id=str(number),
                user="",
                token_ids=[self._random.randrange(self._vocabulary) for _ in range(length)],
                sampling=SamplingParams(max_tokens=1, temperature=0.7),
                timeline=Timeline(0.0, 0.0),
            )
            request.block_ids = [block for _, block in zip(range(blocks_for(length)), free, strict=False)]
            if len(request.block_ids) * BLOCK_SIZE < length or length > self._most:
                return None
            rows.append(ScheduledRequest(request, start, count, samples=number < len(contexts)))
        return SchedulerOutput(tuple(rows), len(contexts))

    def many(self) -> list[tuple[SchedulerOutput, float]]:
        """Steps that decode, prefill or do both, over short and long contexts, each with its seconds.

        Steps that do not fit are left out. Small steps come first, so that only the largest are left out when the time
        is over.
        """
        plans = [self.plan([context] * count) for count in DECODES for context in CONTEXTS]
        plans += [self.plan([], [(start, count)]) for count in PREFILLS for start in CONTEXTS]
        plans += [self.plan([], [(0, count // 2)] * 2) for count in PREFILLS]
        plans += [self.plan([256] * count, [(128, 64)]) for count in DECODES]
        fitting = sorted((plan for plan in plans if plan is not None), key=_size)
        until = time.perf_counter() + GRID_SECONDS
        return [(plan, self.median(plan)) for plan in fitting if time.perf_counter() < until]

    def median(self, plan: SchedulerOutput | None) -> float:
        """Median seconds of up to REPEATS runs of a step. NaN for ``None``, a step that does not fit."""
        if plan is None:
            return float("nan")
        times: list[float] = []
        while len(times) < REPEATS and sum(times) < PLAN_SECONDS:
            started = time.perf_counter()
            self._runner.run(plan)
            times.append(time.perf_counter() - started)
        return median(times)


def _size(plan: SchedulerOutput) -> int:
    """Tokens that the step computes."""
    return sum(row.count for row in plan.rows)


def _bytes_read(model: LoadedModel, kv_bytes: int) -> int:
    """Bytes that decoding one token reads: ``kv_bytes``, and the weights without the rows of the embedding that it does
    not look up."""
    config = model.config
    weights = model.weight_bytes
    if model.weights == "int8" or not config.tie_embeddings:
        weights -= config.vocab_size * config.hidden_size * {"fp32": 4}.get(model.weights, 2)
    return weights + kv_bytes


def _fastest(work: Callable[[], Any], device: torch.device) -> float:
    """Seconds of the fastest of REPEATS runs of ``work``, which may run on a GPU."""
    times = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - started)
    return min(times)


def _read_speed(device: torch.device) -> float:
    """Bytes per second at which memory is read sequentially."""
    data = torch.rand(READ_BYTES // 4, dtype=torch.float32, device=device)  # random, since a host may share equal pages
    return READ_BYTES / _fastest(data.sum, device)


def _copy_speed(device: torch.device) -> float:
    """Bytes per second at which data is copied from the device to host memory."""
    data = torch.ones(READ_BYTES // 16, dtype=torch.float32, device=device)
    host = torch.empty_like(data, device="cpu")
    return READ_BYTES / 4 / _fastest(lambda: host.copy_(data), device)


def _multiply_speed(model: LoadedModel) -> float:
    """Operations per second of one large product in the type of the weights.

    A multiplication and an addition count as two operations.
    """
    rows, depth, columns = 512, FACTOR, FACTOR
    if model.device.type == "cuda":
        rows, depth, columns = 2 * FACTOR, 2 * FACTOR, 2 * FACTOR
    operations = 2 * rows * depth * columns
    if model.weights == "int8":
        import numpy as np

        from slotdeck.engine.kernels.library import Kernels
        from slotdeck.engine.kernels.packed import empty

        kernels = Kernels(torch.get_num_threads())
        try:
            packed = empty(columns, depth)
            kernels.pack(np.random.default_rng(1).standard_normal((columns, depth)).astype(np.float32), packed, 0)
            values = np.random.default_rng(2).standard_normal((rows, depth)).astype(np.float32)
            return operations / _fastest(lambda: kernels.product(values, packed), model.device)
        finally:
            kernels.close()
    kind = {"fp32": torch.float32}.get(model.weights, torch.bfloat16)
    left = torch.randn(rows, depth, dtype=kind, device=model.device)
    right = torch.randn(depth, columns, dtype=kind, device=model.device)
    return operations / _fastest(lambda: left @ right, model.device)
