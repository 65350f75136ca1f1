"""Sends scripted traffic (:mod:`slotdeck.console.advice.traffic`) to a real server.

The server gets the same numbers of tokens, at the same times and with the same pauses, as the simulator. The words are
random.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import httpx

from slotdeck.console.advice.calibration import Wording
from slotdeck.console.advice.traffic import Traffic, Turn
from slotdeck.console.load.client import BusyError, Completion, Endpoint, Message, RequestFailedError, chat
from slotdeck.console.load.prompts import WORDS

TEMPERATURE = 0.7
"""A usual value of chat clients. Greedy answers would repeat themselves."""
MAX_TRIES = 5
"""How often a refused message is sent before it is given up."""
FEW_WORDS, MANY_WORDS = 20, 220


@dataclass
class PlayedTraffic:
    """The result. ``started`` and ``ended`` are the monotonic times of the beginning and of the last text."""

    started: float
    ended: float = 0.0
    answers: list[Completion] = field(default_factory=list)
    rejected: int = 0
    gave_up: int = 0
    errors: Counter[str] = field(default_factory=Counter)


async def measure_wording(client: httpx.AsyncClient, endpoint: Endpoint) -> Wording:
    """Find out how many tokens the server counts for words. Raises RequestFailedError and BusyError."""
    rng = random.Random("wording")

    async def prompt_tokens(*counts: int) -> int:
        messages: list[Message] = []
        for index, count in enumerate(counts):
            role = "user" if index % 2 == 0 else "assistant"
            messages.append({"role": role, "content": _text(rng, count)})
        answer = await chat(client, endpoint, messages, max_tokens=1, temperature=0)
        if answer.prompt_tokens is None:
            raise RequestFailedError("usage", "this server does not report how many tokens a prompt has")
        return answer.prompt_tokens

    few = await prompt_tokens(FEW_WORDS)
    many = await prompt_tokens(MANY_WORDS)
    three = await prompt_tokens(FEW_WORDS, FEW_WORDS, FEW_WORDS)
    per_word = (many - few) / (MANY_WORDS - FEW_WORDS)
    return Wording(
        base=few - FEW_WORDS * per_word,
        per_word=per_word,
        per_message=(three - few) / 2 - FEW_WORDS * per_word,
    )


async def play(
    client: httpx.AsyncClient,
    endpoints: Sequence[Endpoint],
    scripts: Sequence[Sequence[Turn]],
    *,
    seconds: float,
    wording: Wording,
    seed: int,
) -> PlayedTraffic:
    """Let one user follow each script at its own endpoint.

    Nothing is sent after ``seconds``; what was sent before is still answered.
    """
    played = PlayedTraffic(started=time.monotonic())
    async with asyncio.TaskGroup() as group:
        for number, (endpoint, script) in enumerate(zip(endpoints, scripts, strict=True)):
            user = _User(client, endpoint, wording, played, random.Random(f"{seed}/words/{number}"))
            group.create_task(user.follow(script, seconds))
    played.ended = max((answer.last or 0.0 for answer in played.answers), default=time.monotonic())
    return played


def scripts_of(traffic: Traffic, max_turns: int = 2000) -> list[list[Turn]]:
    """The turns of all users, at most ``max_turns`` of each."""
    return [
        [turn for turn, _ in zip(traffic.script(user), range(max_turns), strict=False)] for user in range(traffic.users)
    ]


@dataclass
class _User:
    client: httpx.AsyncClient
    endpoint: Endpoint
    wording: Wording
    played: PlayedTraffic
    rng: random.Random

    async def follow(self, script: Sequence[Turn], seconds: float) -> None:
        messages: list[Message] = []
        for turn in script:
            if time.monotonic() - self.played.started + turn.think > seconds:
                return
            await asyncio.sleep(turn.think)
            if turn.fresh:
                messages = []
            text = _text(self.rng, self.wording.words(turn.message, fresh=turn.fresh))
            messages.append({"role": "user", "content": text})
            answer = await self._ask(messages, turn)
            messages.append({"role": "assistant", "content": answer.text if answer is not None else "…"})

    async def _ask(self, messages: list[Message], turn: Turn) -> Completion | None:
        for attempt in range(1, MAX_TRIES + 1):
            try:
                answer = await chat(
                    self.client,
                    self.endpoint,
                    messages,
                    max_tokens=turn.answer,
                    extra={"min_tokens": turn.answer},
                    temperature=TEMPERATURE,
                    seed=self.rng.getrandbits(31),
                )
            except BusyError as busy:
                self.played.rejected += 1
                if attempt < MAX_TRIES:
                    await asyncio.sleep(busy.retry_after or 1.0)
            except RequestFailedError as error:
                self.played.errors[error.kind] += 1
                await asyncio.sleep(1.0)
                return None
            else:
                self.played.answers.append(answer)
                return answer
        self.played.gave_up += 1
        return None


def _text(rng: random.Random, words: int) -> str:
    return " ".join(rng.choices(WORDS, k=words))
