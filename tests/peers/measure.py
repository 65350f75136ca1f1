"""Measures one server in one round: 1, 2, 5 and 20 users without a prefix cache, then conversations with one."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass, field

import httpx

from slotdeck.console.bench.stage import measure, warm_up
from slotdeck.console.load.client import BusyError, Completion, Message, RequestFailedError, chat, discover, make_client
from slotdeck.console.load.prompts import FOLLOW_UPS, OPENERS, WORDS
from slotdeck.engine.telemetry.windows import percentile

SEED = 1
CHAT_USERS, CHAT_TURNS, CHAT_TOKENS, SYSTEM_WORDS = 5, 3, 32, 150


@dataclass
class Point:
    """One server under one load in one round. Times are in seconds.

    tokens/s counts generated tokens from the first request to the last text.
    """

    load: str
    """``1``, ``2``, ``5`` or ``20`` (users), or ``chat``."""
    tokens_per_second: float | None
    ttft_p50: float | None
    ttft_p95: float | None
    itl_p50: float | None
    itl_p95: float | None
    itl_max: float | None
    generated: int
    prompt: int
    errors: dict[str, int]
    """Requests without a whole answer, by kind of error."""


@dataclass
class Round:
    """The measurements of one round of one server."""

    points: list[Point] = field(default_factory=list)
    resident_bytes: int = 0
    """Resident memory of all its processes after the largest load."""
    start_seconds: float = 0.0
    bandwidth: float | None = None
    """Memory bandwidth just before, in bytes per second read; None if it was not measured."""


async def measure_users(url: str, users: list[int], number: int) -> list[Point]:
    """Each user sends one prompt of about 200 tokens and reads 64 tokens. No two prompts of a run are alike.

    Raises RequestFailedError when the server cannot serve the first request.
    """
    points = []
    async with make_client(url, max(users)) as client:
        endpoint = await discover(client, url, None, None)
        await warm_up(client, endpoint, SEED)
        next_prompt = 1 + number * 1000
        for count in users:
            stage = await measure(
                client, endpoint, users=count, requests=1, seed=SEED, first_prompt=next_prompt, slots=None
            )
            next_prompt += count
            points.append(
                Point(
                    load=str(count),
                    tokens_per_second=stage.tokens_per_second,
                    ttft_p50=stage.ttft_p50,
                    ttft_p95=stage.ttft_p95,
                    itl_p50=stage.itl_p50,
                    itl_p95=stage.itl_p95,
                    itl_max=stage.itl_max,
                    generated=stage.generated_tokens,
                    prompt=stage.prompt_tokens,
                    errors=stage.errors | ({"http 503": stage.rejected} if stage.rejected else {}),
                )
            )
    return points


async def measure_chat(url: str, number: int) -> Point:
    """Five users with the same system prompt and three turns each, without a pause. Conversations grow."""
    rng = random.Random(f"{SEED}/{number}")
    system = "You help in a small workshop. These words matter here: " + " ".join(rng.choices(WORDS, k=SYSTEM_WORDS))
    answers: list[Completion] = []
    errors: Counter[str] = Counter()

    async def ask(client: httpx.AsyncClient, messages: list[Message]) -> Completion | None:
        for attempt in (1, 2):
            try:
                return await chat(client, endpoint, messages, max_tokens=CHAT_TOKENS, temperature=0)
            except BusyError:
                errors["http 503"] += 1
                return None
            except RequestFailedError as error:
                # The server may have closed an idle connection between two turns. That says nothing about its speed.
                if error.kind != "connection" or attempt == 2:
                    errors[f"{error.kind}: {error}"] += 1
                    return None
        return None

    async def person(client: httpx.AsyncClient, place: int) -> None:
        messages: list[Message] = [{"role": "system", "content": system}]
        for turn in range(CHAT_TURNS):
            question = OPENERS[(number * CHAT_USERS + place) % len(OPENERS)] if turn == 0 else FOLLOW_UPS[turn]
            messages.append({"role": "user", "content": question})
            answer = await ask(client, messages)
            if answer is None:
                return
            answers.append(answer)
            messages.append({"role": "assistant", "content": answer.text})

    async with make_client(url, CHAT_USERS) as client:
        endpoint = await discover(client, url, None, None)
        await warm_up(client, endpoint, SEED)
        started = time.monotonic()
        await asyncio.gather(*(person(client, place) for place in range(CHAT_USERS)))
        ended = max((answer.last for answer in answers if answer.last is not None), default=time.monotonic())
    ttfts = [answer.ttft for answer in answers if answer.ttft is not None]
    gaps = [gap for answer in answers for gap in answer.gaps]
    generated = sum(answer.generated for answer in answers)
    return Point(
        load="chat",
        tokens_per_second=generated / (ended - started) if generated else None,
        ttft_p50=percentile(ttfts, 50),
        ttft_p95=percentile(ttfts, 95),
        itl_p50=percentile(gaps, 50),
        itl_p95=percentile(gaps, 95),
        itl_max=max(gaps, default=None),
        generated=generated,
        prompt=sum(answer.prompt_tokens or 0 for answer in answers),
        errors=dict(errors),
    )


def memory_bandwidth(threads: int) -> float:
    """Bytes per second that ``threads`` threads read from memory together: the best of five sums over 1 GiB."""
    import torch

    torch.set_num_threads(threads)
    values = torch.rand(1 << 28)  # random values, so that the host cannot merge equal pages
    best = float("inf")
    for _ in range(5):
        began = time.monotonic()
        values.sum()
        best = min(best, time.monotonic() - began)
    return values.nbytes / best
