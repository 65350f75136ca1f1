"""Penalties and log-probabilities through scheduler and runner are those of transformers, also across preemptions."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from slotdeck.engine.core.block_pool import BlockPool
from slotdeck.engine.core.request import Request, SamplingParams, Timeline
from slotdeck.engine.core.scheduler import Scheduler
from slotdeck.engine.core.step import TokenLogprobs
from slotdeck.engine.model.runner import Runner
from slotdeck.engine.settings import LiveSettings
from tests.support.transformers_twin import NEAR_TIE, Twin, make_twin

COUNT = 60


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> Twin:
    folder: Path = tmp_path_factory.mktemp("tiny")
    return make_twin(folder, seed=5)


def serve(twin: Twin, params: list[SamplingParams]) -> tuple[list[Request], dict[str, list[TokenLogprobs]]]:
    """All at once on a pool so small that they preempt each other."""
    chance = random.Random(3)
    scheduler = Scheduler(LiveSettings(slots=4, context=96, queue=16, budget=24), BlockPool(9))
    runner = Runner(twin.ours, 9, "fp32", threads=1)
    requests = [
        Request(f"r{i}", "user", [chance.randrange(1, 199) for _ in range(20)], sampling, Timeline(0.0, 0.0))
        for i, sampling in enumerate(params)
    ]
    found: dict[str, list[TokenLogprobs]] = {request.id: [] for request in requests}
    for request in requests:
        scheduler.add(request)
    now = 0.0
    while scheduler.has_work:
        now += 1.0
        plan, _ = scheduler.schedule(now)
        result = runner.run(plan)
        assert not result.failures
        for request_id, logprobs in result.logprobs.items():
            found[request_id].append(logprobs)
        scheduler.update_from_output(plan, result, now)
    assert sum(request.num_preemptions for request in requests) > 0
    return requests, found


def test_repetition_penalty_equals_generate(twin: Twin) -> None:
    penalties = [1.0, 1.2, 2.0, 0.8]
    requests, _ = serve(twin, [SamplingParams(COUNT, temperature=0, repetition_penalty=p) for p in penalties])
    twin.theirs.generation_config.eos_token_id = None
    for request, penalty in zip(requests, penalties, strict=True):
        prompt = request.token_ids[: request.num_prompt_tokens]
        with torch.inference_mode():
            wanted = twin.theirs.generate(
                torch.tensor([prompt]),
                max_new_tokens=COUNT,
                do_sample=False,
                pad_token_id=0,
                repetition_penalty=penalty,
                output_logits=True,
                return_dict_in_generate=True,
            )
        expected = wanted.sequences[0, len(prompt) :].tolist()
        for position, (got, token) in enumerate(zip(request.output_token_ids, expected, strict=True)):
            if got != token:
                gap = float(wanted.logits[position][0, token] - wanted.logits[position][0, got])
                assert abs(gap) < NEAR_TIE, f"penalty {penalty} differs at {position}"
                break
    assert len({tuple(request.output_token_ids) for request in requests}) == 4


def test_logprobs_are_the_log_softmax_of_transformers_logits(twin: Twin) -> None:
    asked = [0, 5, None, 20]
    requests, found = serve(
        twin,
        [
            SamplingParams(COUNT, temperature=1.0, seed=i, frequency_penalty=i / 2, top_logprobs=top)
            for i, top in enumerate(asked)
        ],
    )
    for request, top in zip(requests, asked, strict=True):
        assert len(found[request.id]) == (0 if top is None else COUNT)
        with torch.inference_mode():
            logits = twin.theirs(torch.tensor([request.token_ids])).logits[0]
        expected = torch.log_softmax(logits[request.num_prompt_tokens - 1 : -1].float(), -1)
        for row, token, logprobs in zip(expected, request.output_token_ids, found[request.id], strict=False):
            assert logprobs.logprob == pytest.approx(float(row[token]), abs=1e-3)
            assert len(logprobs.top) == top
            for other, value in logprobs.top:
                assert value == pytest.approx(float(row[other]), abs=1e-3)
            if top:
                assert [value for _, value in logprobs.top] == pytest.approx(row.topk(top).values.tolist(), abs=1e-3)
