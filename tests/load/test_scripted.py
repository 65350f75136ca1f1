"""Scripted traffic at a server: lengths, pauses and refusals as the simulator takes them."""

from __future__ import annotations

from typing import Any

import pytest

from slotdeck.console.advice.calibration import Wording
from slotdeck.console.advice.traffic import Traffic, Turn
from slotdeck.console.bench.calibrate import edge_of, fit_few, overhead_of
from slotdeck.console.load import scripted
from slotdeck.console.load.client import Endpoint, RequestFailedError, make_client
from slotdeck.console.load.scripted import PlayedTraffic, measure_wording, play, scripts_of
from slotdeck.engine.telemetry.step_log import StepSample, StepWork
from tests.support.calibration import PRICES
from tests.support.fake_openai import FakeOpenAI, Reply, busy, serving

WORDING = Wording(base=10, per_word=1.0, per_message=5)


def counting(body: dict[str, Any]) -> int:
    """30 tokens for the template, two for each word and 6 for each message but the first."""
    words = sum(len(message["content"].split()) for message in body["messages"])
    return 30 + 2 * words + 6 * (len(body["messages"]) - 1)


async def played(fake: FakeOpenAI, *scripts: list[Turn], wording: Wording = WORDING) -> PlayedTraffic:
    async with serving(fake.app) as url, make_client(url, len(scripts)) as client:
        endpoints = [Endpoint(url, "fake")] * len(scripts)
        return await play(client, endpoints, scripts, seconds=5.0, wording=wording, seed=1)


async def test_the_server_is_asked_what_words_cost() -> None:
    fake = FakeOpenAI()
    fake.count = counting
    async with serving(fake.app) as url, make_client(url, 1) as client:
        wording = await measure_wording(client, Endpoint(url, "fake"))
    assert wording == Wording(base=30, per_word=2, per_message=6)
    assert wording.words(130, fresh=True) == 50
    assert wording.words(106, fresh=False) == 50


async def test_a_server_that_counts_no_tokens_cannot_be_scripted() -> None:
    fake = FakeOpenAI(lambda _number, _body: Reply(usage=False))
    async with serving(fake.app) as url, make_client(url, 1) as client:
        with pytest.raises(RequestFailedError, match="how many tokens"):
            await measure_wording(client, Endpoint(url, "fake"))


async def test_conversations_grow_and_begin_anew_as_the_script_says() -> None:
    fake = FakeOpenAI()
    fake.count = counting
    turns = [Turn(0, 60, 7, True), Turn(0, 25, 8, False), Turn(0, 50, 9, True)]
    wording = Wording(base=30, per_word=2, per_message=6)
    result = await played(fake, turns, wording=wording)
    assert [len(body["messages"]) for body in fake.bodies] == [1, 3, 1]
    assert [body["max_tokens"] for body in fake.bodies] == [7, 8, 9]
    assert [body["min_tokens"] for body in fake.bodies] == [7, 8, 9]
    assert fake.bodies[1]["messages"][1] == {"role": "assistant", "content": "Hello there."}
    assert result.answers[0].prompt_tokens == 60
    assert result.ended > result.started


async def test_a_refused_message_is_sent_again_and_then_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scripted, "MAX_TRIES", 2)
    refused = FakeOpenAI(lambda number, _body: busy("0.01") if number < 3 else Reply())
    result = await played(refused, [Turn(0, 30, 5, True), Turn(0, 30, 5, False)])
    assert (result.rejected, result.gave_up, len(result.answers)) == (3, 1, 1)


async def test_nothing_is_sent_after_the_time() -> None:
    fake = FakeOpenAI()
    result = await played(fake, [Turn(0, 30, 5, True), Turn(60, 30, 5, False)])
    assert len(result.answers) == 1


def test_every_user_has_a_script_of_its_own() -> None:
    one, two = scripts_of(Traffic("chat", 2, 60, 1024), max_turns=5)
    assert len(one) == len(two) == 5
    assert one != two


def test_the_edge_is_read_off_one_user_who_never_pauses() -> None:
    work = StepWork(1, 0, 0, 0, 10, 0)
    samples = [
        StepSample(work, 1.0, 0.1, None),
        StepSample(work, 1.2, 0.1, 0.1),
        StepSample(work, 1.32, 0.1, None),  # 20 ms after the end of the step before
        StepSample(work, 1.44, 0.1, None),
    ]
    edge = edge_of(samples, [(100, 0.003), (300, 0.005), (200, 0.004)])
    assert edge.intake == pytest.approx(0.002)
    assert edge.intake_token == pytest.approx(1e-5)
    assert edge.turnaround == pytest.approx(0.016)
    assert overhead_of(samples) == pytest.approx(0.5)
    assert overhead_of([]) == 0.0


def test_a_few_steps_are_enough_when_each_is_a_median() -> None:
    works = [StepWork(n, 0, 0, 0, n * c, 0) for n in (1, 2, 4, 8) for c in (64, 1024)]
    works += [StepWork(0, n, 1, 0, 0, n * c) for n in (16, 64, 256) for c in (64, 1024)]
    model = fit_few([StepSample(work, 0.0, PRICES.seconds(work), 0.0) for work in works])
    assert all(model.seconds(work) == pytest.approx(PRICES.seconds(work), rel=0.05) for work in works)
