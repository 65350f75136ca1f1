"""Measures what steps cost, with nothing around them: no server, no clients. One half of a calibration; the other half
is measured through a server under load, by the console.

What the machine can do at most (reading memory, multiplying) is measured in the same run, so that shares of it mean
something.
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
"""Tokens of the prompt whose prefill is measured, and of the context that a single decode reads; less for a model of
short contexts."""
DECODES = (1, 2, 4, 8, 16, 32)
PREFILLS = (16, 64, 128, 256, 512)
CONTEXTS = (64, 1024)
REPEATS = 5
PLAN_SECONDS = 1.5
"""Spent on one kind of step before it is enough, once it ran at all: large models on small machines take their time."""
GRID_SECONDS = 40.0
"""Spent on steps of many kinds; what is left out then are the largest."""
POOL_TOKENS = 20_000
READ_BYTES = 256 << 20
"""More than any cache holds."""
FACTOR = 2048
"""Size of the matrices that are multiplied; on a CPU a quarter of it in one direction."""


def measure(settings: StartSettings, say: Callable[[str], None]) -> dict[str, Any]:
    """Facts for a calibration: rates of one stream, steps of many kinds with their seconds, and the machine's limits.

    ``say`` gets a line for each part. Raises ModelError when the model cannot be loaded.
    """
    say(f"loading {settings.model}")
    model = load_model(settings.model, weights=settings.weights, device=settings.device)
    per_token = model.config.token_bytes(kv_type(settings.kv_dtype, model.kv_dtype))
    pool = min(POOL_TOKENS, available_memory(model.device) // (2 * per_token))
    prompt = min(PROMPT, model.config.max_positions // 2)
    if pool < 2 * prompt:
        raise ModelError(f"the memory beside the weights holds {pool} tokens of KV, {2 * prompt} are needed to measure")
    runner = Runner(model, blocks_for(pool), settings.kv_dtype, settings.threads)
    bench = _Steps(model, runner)
    say("measuring one stream")
    bench.median(bench.plan([prompt]))  # the first steps find nothing in any cache
    decode = bench.median(bench.plan([prompt]))
    budget = min(prompt, 512 if model.device.type == "cuda" else 64)
    prefill = sum(bench.median(bench.plan([], [(start, budget)])) for start in range(0, prompt, budget))
    say("measuring steps of many kinds")
    steps = [[list(work_of(plan)), seconds] for plan, seconds in bench.many()]
    say("measuring the machine")
    torch.set_num_threads(runner.threads)
    config = model.config
    # Prefill reads rows of the embedding and needs the head for its last token only.
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
    """Plans over made-up requests, each with blocks of its own, and how long the runner takes for them."""

    def __init__(self, model: LoadedModel, runner: Runner) -> None:
        self._runner = runner
        self._vocabulary = model.config.vocab_size
        self._most = model.config.max_positions
        self._random = random.Random("measure")

    def plan(self, contexts: list[int], prefills: list[tuple[int, int]] = []) -> SchedulerOutput | None:  # noqa: B006
        """A decode over each context, and prefill chunks (start, tokens); ``None`` where the pool cannot hold them."""
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
        """Decodes alone, prefills alone and both together, over short and long contexts, as far as they fit, each with
        its seconds. Small ones first, so that what there is no time for are the largest."""
        plans = [self.plan([context] * count) for count in DECODES for context in CONTEXTS]
        plans += [self.plan([], [(start, count)]) for count in PREFILLS for start in CONTEXTS]
        plans += [self.plan([], [(0, count // 2)] * 2) for count in PREFILLS]
        plans += [self.plan([256] * count, [(128, 64)]) for count in DECODES]
        fitting = sorted((plan for plan in plans if plan is not None), key=_size)
        until = time.perf_counter() + GRID_SECONDS
        return [(plan, self.median(plan)) for plan in fitting if time.perf_counter() < until]

    def median(self, plan: SchedulerOutput | None) -> float:
        """Seconds of a step, the middle of some; NaN for a plan that does not fit."""
        if plan is None:
            return float("nan")
        times: list[float] = []
        while len(times) < REPEATS and sum(times) < PLAN_SECONDS:
            started = time.perf_counter()
            self._runner.run(plan)
            times.append(time.perf_counter() - started)
        return median(times)


def _size(plan: SchedulerOutput) -> int:
    return sum(row.count for row in plan.rows)


def _bytes_read(model: LoadedModel, kv_bytes: int) -> int:
    """What decoding one token reads: all weights but the other rows of the embedding, and ``kv_bytes``."""
    config = model.config
    weights = model.weight_bytes
    if model.weights == "int8" or not config.tie_embeddings:
        weights -= config.vocab_size * config.hidden_size * {"fp32": 4}.get(model.weights, 2)
    return weights + kv_bytes


def _fastest(work: Callable[[], Any], device: torch.device) -> float:
    times = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - started)
    return min(times)


def _read_speed(device: torch.device) -> float:
    """Bytes per second that reading memory in order reaches."""
    data = torch.rand(READ_BYTES // 4, dtype=torch.float32, device=device)  # contents that no host keeps once for many
    return READ_BYTES / _fastest(data.sum, device)


def _copy_speed(device: torch.device) -> float:
    """Bytes per second at which KV is copied to host memory, one way."""
    data = torch.ones(READ_BYTES // 16, dtype=torch.float32, device=device)
    host = torch.empty_like(data, device="cpu")
    return READ_BYTES / 4 / _fastest(lambda: host.copy_(data), device)


def _multiply_speed(model: LoadedModel) -> float:
    """Operations per second (a multiplication and an addition are two) of one large product in the weights' type."""
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
