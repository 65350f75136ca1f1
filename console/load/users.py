"""One simulated user of a chat client: a person, an agent, or somebody who works on documents.

A chat user reads for 20 to 60 seconds between two turns of a conversation. An agent asks again at once. A document user
sends one text after another, each of about half a context, and asks for a short summary. Whatever the server does is
counted, and the user goes on.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import httpx

from slotdeck.console.load import Kind
from slotdeck.console.load.client import (
    BusyError,
    Endpoint,
    Message,
    RequestFailedError,
    UnreachableError,
    chat,
)
from slotdeck.console.load.prompts import FOLLOW_UPS, OPENERS
from slotdeck.console.load.tally import Tally

Pause = Callable[[float], Awaitable[None]]

READING_SECONDS = (20.0, 60.0)
FIRST_TURN_SECONDS = 5.0
ANSWER_TOKENS = (60, 250)
SUMMARY_TOKENS = (16, 40)
DOCUMENT_SHARE = (0.5, 0.9)
"""Part of the context that a document takes, by the cautious estimate below; in fact about two thirds of that."""
MAX_DOCUMENT_TOKENS = 3000
MAX_TURNS = 8
MAX_TRIES = 5
"""How often a user sends a refused turn before giving it up."""
DEFAULT_CONTEXT = 2048
CHARACTERS_PER_TOKEN = 3
"""A cautious estimate; English has about 4. It is used until the server has counted a prompt."""
TEMPLATE_TOKENS = 40
MAX_BACKOFF = 30.0


class SimulatedUser:
    """A user who talks until cancelled.

    ``renew`` returns a fresh endpoint. It is called if the server cannot be reached, or refuses the key, the model or
    the length. Each conversation begins with ``opening``. If ``midway``, a chat user starts at a random moment of
    reading instead of within the first seconds. ``pause`` is ``asyncio.sleep``, which tests replace.
    """

    def __init__(
        self,
        client: httpx.AsyncClient,
        endpoint: Endpoint,
        tally: Tally,
        *,
        kind: Kind,
        seed: str,
        renew: Callable[[], Awaitable[Endpoint]] | None = None,
        opening: str = "",
        midway: bool = False,
        pause: Pause = asyncio.sleep,
    ) -> None:
        self.endpoint = endpoint
        self._client = client
        self._tally = tally
        self._kind = kind
        self._rng = random.Random(seed)
        self._renew = renew
        self._opening = opening
        self._midway = midway
        self._pause = pause
        self._messages: list[Message] = []
        self._used_tokens = 0
        self._turns = 0
        self._failures = 0
        self._shorter = 1.0
        """Factor for the length of documents. It is halved after one that did not fit."""

    async def run(self) -> None:
        """Talk without end; only cancellation ends it."""
        first = self._rng.uniform(*READING_SECONDS) if self._midway else FIRST_TURN_SECONDS
        await self._pause(self._rng.uniform(0, first) if self._kind == "chat" else 0)
        while True:
            answered = await self.turn()
            if not answered:
                self._failures += 1
                backoff = min(2.0 ** (self._failures - 1), MAX_BACKOFF)
                await self._pause(backoff * self._rng.uniform(1, 1.5))
                continue
            self._failures = 0
            if self._kind == "chat":
                await self._pause(self._rng.uniform(*READING_SECONDS))

    async def turn(self) -> bool:
        """Send one message and read the answer. Returns False if there was none."""
        most = self._rng.randint(*(SUMMARY_TOKENS if self._kind == "document" else ANSWER_TOKENS))
        question = self._next_question(most)
        messages: list[Message] = [*self._messages, {"role": "user", "content": question}]
        seed = self._rng.getrandbits(31)
        for attempt in range(1, MAX_TRIES + 1):
            self._tally.requests += 1
            self._tally.in_flight += 1
            try:
                answer = await chat(
                    self._client,
                    self.endpoint,
                    messages,
                    max_tokens=most,
                    temperature=0.7,
                    seed=seed,
                    on_text=self._tally.text_arrived,
                )
            except BusyError as busy:
                self._tally.reached()
                self._tally.rejected += 1
                if attempt == MAX_TRIES:
                    break
                # This spread, together with the server's own, keeps refused users from returning all at once.
                delay = min(busy.retry_after if busy.retry_after is not None else 2.0**attempt, MAX_BACKOFF)
                await self._pause(delay * self._rng.uniform(1, 1.5))
                continue
            except RequestFailedError as error:
                await self._failed(error)
                return False
            finally:
                self._tally.in_flight -= 1
            self._tally.answered(answer)
            self._messages = [*messages, {"role": "assistant", "content": answer.text}]
            self._used_tokens = (
                answer.prompt_tokens + answer.generated
                if answer.prompt_tokens is not None
                else sum(len(message["content"]) for message in self._messages) // CHARACTERS_PER_TOKEN
            )
            self._turns += 1
            return True
        self._tally.gave_up += 1
        return False

    def _next_question(self, most: int) -> str:
        """A follow-up if the conversation goes on and fits the context, else the first message of a new one."""
        if self._kind == "document":
            self._start_over()
            return f"{self._opening}{self._document(most)}"
        room = (self.endpoint.context or DEFAULT_CONTEXT) - self._used_tokens - most - TEMPLATE_TOKENS
        follow_up = self._rng.choice(FOLLOW_UPS)
        opener = self._rng.choice(OPENERS)
        over = self._turns >= self._rng.randint(2, MAX_TURNS)
        if self._messages and not over and room >= len(follow_up) // CHARACTERS_PER_TOKEN:
            return follow_up
        self._start_over()
        return f"{self._opening}{opener}"

    def _document(self, most: int) -> str:
        """A text that fits the context, with the request to sum it up."""
        context = self.endpoint.context or DEFAULT_CONTEXT
        tokens = min(self._rng.uniform(*DOCUMENT_SHARE) * (context - most - TEMPLATE_TOKENS), MAX_DOCUMENT_TOKENS)
        sentences: list[str] = []
        characters = 0
        while characters < tokens * CHARACTERS_PER_TOKEN * self._shorter:
            sentences.append(self._rng.choice(OPENERS))
            characters += len(sentences[-1]) + 1
        return f"{' '.join(sentences)}\nSum up the text above in one sentence."

    def _start_over(self) -> None:
        self._messages, self._used_tokens, self._turns = [], 0, 0

    async def _failed(self, error: RequestFailedError) -> None:
        self._tally.failed(error.kind, str(error))
        if isinstance(error, UnreachableError):
            self._tally.unreachable()
        else:
            self._tally.reached()
        if error.status in (400, 413):
            self._start_over()
            self._shorter /= 2
        stale = isinstance(error, UnreachableError) or error.status in (400, 401, 403, 404)
        if self._renew is not None and stale:
            try:
                self.endpoint = await self._renew()
            except RequestFailedError:
                pass  # The same problem as the error that was just counted.
