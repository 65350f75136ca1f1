"""The whole server over HTTP on the embedded model, used with the ``openai`` client as users do."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from slotdeck.engine.telemetry.frame import Frame
from tests.support.real_engine import RealEngine

pytestmark = pytest.mark.model

PROMPTS = [
    "What is the capital of France?",
    "Name three colours and say where one sees them.",
    "Why is the sky blue? Answer in two sentences.",
    "Write a short poem about a homelab.",
    "How do I make a good cup of tea?",
]


@pytest.fixture(scope="module")
def engine() -> Iterator[RealEngine]:
    with RealEngine(weights="fp32", slots=5, context=512, queue=3, queue_share=100, heartbeat=0.5) as running:
        yield running


@pytest.fixture(autouse=True)
def leaves_nothing_behind(engine: RealEngine) -> Iterator[None]:
    before = engine.frame().limits
    yield
    frame = engine.wait_until_idle()
    assert frame.pool.live == 0
    assert frame.health == "ok"
    c = frame.counters
    ends = (c.finished, c.cancelled, c.failed, c.rejected, c.invalid)
    assert c.received == sum(end or 0 for end in ends)
    assert (
        frame.limits.revision == before.revision or engine.change(slots=5, context=512, queue=3, budget=64).is_success
    )


def client(engine: RealEngine) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{engine.url}/v1", api_key="none", max_retries=0, timeout=120)


async def complete(engine: RealEngine, prompt: str, max_tokens: int = 32, **extra: Any) -> str:
    answer = await client(engine).chat.completions.create(
        model="SmolLM2-135M-Instruct",
        messages=[{"role": "user", "content": prompt}],
        max_tokens=max_tokens,
        **({"temperature": 0} | extra),
    )
    return answer.choices[0].message.content or ""


async def stream(engine: RealEngine, prompt: str, max_tokens: int = 32, **extra: Any) -> str:
    pieces = []
    chunks = await client(engine).chat.completions.create(
        model="SmolLM2-135M-Instruct",
        messages=[{"role": "user", "content": prompt}],
        max_tokens=max_tokens,
        stream=True,
        **({"temperature": 0} | extra),
    )
    async for chunk in chunks:
        if chunk.choices and chunk.choices[0].delta.content:
            pieces.append(chunk.choices[0].delta.content)
    return "".join(pieces)


def open_stream(engine: RealEngine, http: httpx.AsyncClient, prompt: str, max_tokens: int) -> Any:
    body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": max_tokens, "stream": True}
    return http.stream("POST", f"{engine.url}/v1/chat/completions", json=body | {"temperature": 0})


async def test_five_streams_at_once_each_equal_their_solo_run(engine: RealEngine) -> None:
    solo = [await complete(engine, prompt) for prompt in PROMPTS]
    together = await asyncio.gather(*(stream(engine, prompt) for prompt in PROMPTS))
    assert list(together) == solo
    assert "Paris" in solo[0]


async def test_a_killed_stream_frees_its_blocks_and_leaves_the_others_alone(engine: RealEngine) -> None:
    expected = await complete(engine, PROMPTS[3], 60)
    async with httpx.AsyncClient(timeout=120) as http:
        other = asyncio.create_task(stream(engine, PROMPTS[3], 60))
        async with open_stream(engine, http, "Count from one to a thousand.", 400) as response:
            lines = response.aiter_lines()
            for _ in range(6):
                await anext(lines)
    frame = await asyncio.to_thread(engine.wait_for, lambda frame: (frame.counters.cancelled or 0) > 0)
    assert sum(slot.request_id is not None for slot in frame.slots) <= 1
    assert await other == expected


async def test_con_03_and_04_clients_that_leave_while_queued_or_without_streaming_are_dropped(
    engine: RealEngine,
) -> None:
    engine.change(slots=1)
    cancelled = engine.frame().counters.cancelled or 0
    async with httpx.AsyncClient(timeout=120) as http:
        body = {"messages": [{"role": "user", "content": "Tell a long story."}], "max_tokens": 400, "ignore_eos": True}
        requests = [asyncio.create_task(http.post(f"{engine.url}/v1/chat/completions", json=body)) for _ in range(3)]
        await asyncio.to_thread(
            engine.wait_for, lambda frame: frame.waiting_count == 2 and any(slot.output_tokens for slot in frame.slots)
        )
        for task in requests:
            task.cancel()
        await asyncio.gather(*requests, return_exceptions=True)
    frame = await asyncio.to_thread(engine.wait_until_idle)
    assert frame.counters.cancelled == cancelled + 3
    assert (frame.counters.gave_up_waiting or 0) >= 2


async def test_con_11_overflow_gets_503_with_retry_after_at_once(engine: RealEngine) -> None:
    engine.change(slots=1, queue=1)
    async with httpx.AsyncClient(timeout=120) as http:
        body = {"messages": [{"role": "user", "content": "Tell a long story."}], "max_tokens": 60}
        answers = await asyncio.gather(*(http.post(f"{engine.url}/v1/chat/completions", json=body) for _ in range(6)))
    codes = sorted(answer.status_code for answer in answers)
    assert codes == [200, 200, 503, 503, 503, 503]
    refused = next(answer for answer in answers if answer.status_code == 503)
    assert int(refused.headers["retry-after"]) >= 1
    assert refused.json()["error"]["code"] == "queue_full"


async def test_ctx_01_a_prompt_beyond_the_context_is_refused_with_both_numbers(engine: RealEngine) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await complete(engine, "word " * 700)
    error = caught.value.body
    assert isinstance(error, dict)
    assert error["code"] == "context_length_exceeded"
    assert "512" in error["message"]
    assert any(number in error["message"] for number in ("72", "73"))


async def test_settings_change_while_people_stream(engine: RealEngine) -> None:
    expected = [await complete(engine, prompt, 48) for prompt in PROMPTS]
    streams = [asyncio.create_task(stream(engine, prompt, 48)) for prompt in PROMPTS]
    for changes in ({"slots": 2}, {"budget": 8}, {"slots": 5, "queue": 8}, {"budget": 256}, {"context": 300}):
        answer = await asyncio.to_thread(engine.change, **changes)
        assert answer.status_code == 200, answer.text
    assert await asyncio.gather(*streams) == expected
    refused = await asyncio.to_thread(engine.change, context=100_000)
    assert refused.status_code == 422
    assert "at most" in refused.json()["error"]["message"]


async def test_con_15_health_slots_and_metrics_answer_during_a_long_prefill(engine: RealEngine) -> None:
    async with httpx.AsyncClient(timeout=120) as http:
        long = asyncio.create_task(complete(engine, "word " * 420, 4))
        seen_prefill = False
        while not long.done():
            for path in ("/health", "/slots", "/metrics"):
                assert (await http.get(engine.url + path)).status_code == 200
            frame = await asyncio.to_thread(engine.frame)
            seen_prefill |= any(slot.state == "prefill" for slot in frame.slots)
        await long
    assert seen_prefill


async def test_seeded_sampling_repeats_itself_in_company(engine: RealEngine) -> None:
    async def draw(seed: int) -> str:
        return await complete(engine, PROMPTS[3], 24, temperature=1.0, seed=seed)

    alone = await draw(11)
    same, other, again = await asyncio.gather(draw(11), draw(12), draw(11))
    assert alone == same == again
    assert other != alone


async def test_stop_strings_end_the_text_before_them(engine: RealEngine) -> None:
    whole = await complete(engine, PROMPTS[0])
    word = whole.split()[3]
    for cut in (await complete(engine, PROMPTS[0], stop=word), await stream(engine, PROMPTS[0], stop=[word, "zzz"])):
        assert cut == whole[: whole.index(word)]


async def test_txt_05_a_waiting_stream_gets_heartbeats(engine: RealEngine) -> None:
    engine.change(slots=1)
    async with httpx.AsyncClient(timeout=120) as http:
        first = asyncio.create_task(stream(engine, "Tell a long story.", 150, extra_body={"ignore_eos": True}))
        await asyncio.to_thread(engine.wait_for, lambda frame: frame.running == 1)
        async with open_stream(engine, http, "hello", 4) as response:
            lines = [line async for line in response.aiter_lines() if line]
        await first
    assert any(line.startswith(":") for line in lines)
    assert lines[-1] == "data: [DONE]"


async def test_preemption_changes_no_text() -> None:
    with RealEngine(weights="fp32", slots=4, context=240, kv_tokens=256, budget=64) as small:
        prompts = [f"{prompt} Tell me as much as you can." for prompt in PROMPTS[:4]]
        solo = [await complete(small, prompt, 60) for prompt in prompts]
        together = await asyncio.gather(*(stream(small, prompt, 60) for prompt in prompts))
        frame: Frame = small.wait_until_idle()
        assert (frame.counters.preemptions or 0) > 0
        assert list(together) == solo
        assert frame.pool.live == 0


async def test_con_19_sigterm_lets_streams_finish_and_exits_0() -> None:
    with RealEngine(slots=1, context=2048, drain_timeout=60) as stopping:
        running = asyncio.create_task(stream(stopping, "Count to ten.", 1200, extra_body={"ignore_eos": True}))
        await asyncio.to_thread(stopping.wait_for, lambda frame: any(slot.output_tokens for slot in frame.slots))
        waiting = asyncio.create_task(complete(stopping, "hello"))
        await asyncio.to_thread(stopping.wait_for, lambda frame: frame.waiting_count == 1)
        stopping.process.send_signal(signal.SIGTERM)
        with pytest.raises(openai.APIStatusError) as refused:
            await waiting
        assert refused.value.status_code == 503
        assert len(await running) > 1000
        assert await asyncio.to_thread(stopping.process.wait, 60) == 0


def test_sec_01_a_bind_to_other_machines_without_keys_is_refused() -> None:
    with pytest.raises(RuntimeError, match="--api-key"), RealEngine(host="0.0.0.0"):
        pass


async def test_keys_are_required_and_label_the_users() -> None:
    with RealEngine(api_key="laptop=k1,phone=k2", slots=2, context=256) as guarded:
        async with httpx.AsyncClient(timeout=60) as http:
            for path in ("/v1/models", "/slots", "/metrics", "//v1/models", "/V1/models", "/v1/models/"):
                assert (await http.get(guarded.url + path)).status_code in (401, 404), path
            assert (await http.get(f"{guarded.url}/health")).status_code == 200
        keyed = openai.AsyncOpenAI(base_url=f"{guarded.url}/v1", api_key="k2", max_retries=0)
        answer = asyncio.create_task(
            keyed.chat.completions.create(
                model="SmolLM2-135M-Instruct",
                messages=[{"role": "user", "content": "Tell a story."}],
                max_tokens=200,
                extra_body={"ignore_eos": True},
            )
        )
        frame = await asyncio.to_thread(guarded.wait_for, lambda frame: frame.running == 1)
        assert [slot.user for slot in frame.slots if slot.request_id] == ["phone"]
        assert (await answer).usage
        assert "k2" not in json.dumps(frame.model_dump())
