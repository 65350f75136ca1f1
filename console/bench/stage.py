"""One stage of the bench: what a number of simultaneous users get, measured by the client.

Every prompt has 150 words and shares no cacheable prefix with another one. Answers have up to 64 tokens, at
temperature 0.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field

import httpx

from slotdeck.console.load.client import BusyError, Completion, Endpoint, RequestFailedError, chat, open_connections
from slotdeck.console.load.prompts import bench_prompt
from slotdeck.engine.telemetry.windows import percentile

PROMPT_WORDS = 150
ANSWER_TOKENS = 64


@dataclass
class Stage:
    """What a number of users got. Times in seconds, ``None`` without samples. Refused requests are not sent again."""

    users: int
    slots: int | None
    """Slots of the server during the stage, if known."""
    requests: int
    seconds: float
    """From sending the first request to the last text."""
    prompt_tokens: int
    generated_tokens: int
    counted_by: str
    """``usage`` if the server counted the tokens, ``chunks`` if pieces of text were counted instead."""
    tokens_per_second: float | None
    ttft_p50: float | None
    ttft_p95: float | None
    itl_p50: float | None
    itl_p95: float | None
    itl_max: float | None
    ttft_count: int
    itl_count: int
    rejected: int
    """Refusals with 503."""
    errors: dict[str, int] = field(default_factory=dict)


async def warm_up(client: httpx.AsyncClient, endpoint: Endpoint, seed: int) -> None:
    """Send one request that is not counted. Raises RequestFailedError if the server cannot serve it."""
    try:
        await _ask(client, endpoint, bench_prompt(0, seed, PROMPT_WORDS))
    except BusyError as error:
        raise RequestFailedError(
            "http 503", "the server is full; the bench needs a server without other users"
        ) from error


async def measure(
    client: httpx.AsyncClient,
    endpoint: Endpoint,
    *,
    users: int,
    requests: int,
    seed: int,
    first_prompt: int,
    slots: int | None = None,
) -> Stage:
    """Let all users at once send ``requests`` prompts each, one after another.

    Prompts are numbered from ``first_prompt`` on, so that no two stages send the same.
    """
    await open_connections(client, endpoint, users)
    answers: list[Completion] = []
    rejected = 0
    errors: Counter[str] = Counter()

    async def user(number: int) -> None:
        nonlocal rejected
        for turn in range(requests):
            prompt = bench_prompt(first_prompt + turn * users + number, seed, PROMPT_WORDS)
            try:
                answers.append(await _ask(client, endpoint, prompt))
            except BusyError:
                rejected += 1
            except RequestFailedError as error:
                errors[error.kind] += 1

    started = time.monotonic()
    await asyncio.gather(*(user(number) for number in range(users)))
    ended = max((answer.last for answer in answers if answer.last is not None), default=time.monotonic())
    generated = sum(answer.generated for answer in answers)
    ttfts = [answer.ttft for answer in answers if answer.ttft is not None]
    gaps = [gap for answer in answers for gap in answer.gaps]
    counted = all(answer.completion_tokens is not None for answer in answers)
    return Stage(
        users=users,
        slots=slots,
        requests=users * requests,
        seconds=ended - started,
        prompt_tokens=sum(answer.prompt_tokens or 0 for answer in answers),
        generated_tokens=generated,
        counted_by="usage" if counted else "chunks",
        tokens_per_second=generated / (ended - started) if generated and ended > started else None,
        ttft_p50=percentile(ttfts, 50),
        ttft_p95=percentile(ttfts, 95),
        itl_p50=percentile(gaps, 50),
        itl_p95=percentile(gaps, 95),
        itl_max=max(gaps, default=None),
        ttft_count=len(ttfts),
        itl_count=len(gaps),
        rejected=rejected,
        errors=dict(errors),
    )


async def _ask(client: httpx.AsyncClient, endpoint: Endpoint, prompt: str) -> Completion:
    messages = [{"role": "user", "content": prompt}]
    return await chat(client, endpoint, messages, max_tokens=ANSWER_TOKENS, temperature=0)
