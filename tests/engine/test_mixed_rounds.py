"""KV-08 with real tensors: hundreds of rounds of everything that can happen, and nothing is left behind."""

from __future__ import annotations

import random
from pathlib import Path

import psutil
import pytest

from slotdeck.engine.core.events import QueueFullError
from slotdeck.engine.core.request import Request, SamplingParams, State, Timeline
from slotdeck.engine.settings import LiveSettings
from tests.support.transformers_twin import Drive, make_twin, random_change

ROUNDS = 500
MEMORY_SLACK = 48 << 20
"""Bytes that allocators may keep; a leak of one block table or host copy a round would be far more."""


@pytest.mark.slow
def test_kv_08_500_mixed_rounds_leave_no_block_and_no_memory(tmp_path: Path) -> None:
    twin = make_twin(tmp_path, num_hidden_layers=2)
    settings = LiveSettings(slots=3, context=128, queue=3, budget=32, preemption="swap")
    drive = Drive(twin, settings, 10, seed=8)
    chance, scheduler = random.Random(8), drive.scheduler
    ends = dict.fromkeys((State.FINISHED, State.CANCELLED, State.FAILED), 0)
    refused = preempted = 0
    process, memory = psutil.Process(), 0

    for number in range(ROUNDS):
        if number == ROUNDS // 5:
            memory = process.memory_info().rss
        requests = []
        for index in range(chance.randint(1, 7)):
            prompt = [chance.randrange(1, 199) for _ in range(chance.randint(1, 70))]
            params = SamplingParams(max_tokens=chance.randint(1, 50), temperature=0.0)
            request = Request(f"{number}-{index}", f"user{index % 3}", prompt, params, Timeline(0.0, 0.0))
            try:
                scheduler.add(request)
                requests.append(request)
            except QueueFullError:
                refused += 1
        while scheduler.has_work:
            action = chance.random()
            if action < 0.05 and requests:
                scheduler.cancel(chance.choice(requests).id, drive.now)
            elif action < 0.08:
                random_change(drive)
                drive.update(slots=3, budget=32)  # torch keeps memory for each batch shape it has seen
            elif action < 0.09:
                plan, _ = scheduler.schedule(drive.now)
                drive.runner.forget_swapped()
                scheduler.fail_step(plan, "injected", drive.now)
            elif scheduler.has_work:
                drive.step()
        drive.events.clear()
        for request in requests:
            ends[request.state] += 1
            preempted += request.num_preemptions
        assert scheduler.pool.num_used == 0
        assert drive.runner.swapped_bytes == scheduler.swapped_bytes == 0

    assert min(*ends.values(), refused, preempted) > 20, "a kind of end was hardly seen"
    assert process.memory_info().rss - memory < MEMORY_SLACK
