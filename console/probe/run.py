"""Runs a probe: one request alone, two at once, then many, then long prompts. Requests and time are bounded."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from slotdeck.console.load.client import (
    BusyError,
    Completion,
    RequestFailedError,
    base_url,
    make_client,
    open_connections,
)
from slotdeck.console.load.prompts import bench_prompt
from slotdeck.console.probe.cut import Cut, find_cut, sizes
from slotdeck.console.probe.judge import Pair, Slots, Stream, count_slots, judge_pair, stream_of
from slotdeck.console.probe.server import Server, TimeUpError, find, told_context

PROMPT_WORDS = 40
FIRST_TOKENS = 48
"""Length of the first lone answer, whose speed determines the length of the others."""
ANSWER_SECONDS = 4.0
"""How long a lone answer should take."""
MIN_TOKENS, MAX_TOKENS = 24, 96
UNSTEADY = 1.5
"""Ratio of the speeds of two lone answers, above which the server seems to be busy with other work."""


@dataclass(frozen=True)
class Limits:
    """Bounds of a probe."""

    at_once: int = 8
    """Simultaneous requests in the third stage."""
    longest: int = 8192
    """Tokens of the longest prompt; 0 for no long prompts."""
    seconds: float = 120.0

    @property
    def requests(self) -> int:
        """The most requests: warm-up, two alone, a pair (twice if unclear), many at once, short and long prompts."""
        return 1 + 2 + 4 + self.at_once + (2 + len(sizes(None, self.longest)) if self.longest else 0)

    def describe(self) -> str:
        """A sentence about what will be sent."""
        long = f"; then prompts of up to {self.longest} tokens, to see whether they are cut" if self.longest else ""
        return (
            f"at most {self.requests} requests in at most {self.seconds:.0f} s: one to warm up, two alone, "
            f"two at once, {self.at_once} at once, each of {PROMPT_WORDS} words, at most {MAX_TOKENS} tokens out{long}"
        )


@dataclass
class ProbeReport:
    """The result. ``None`` for a stage that was not reached."""

    url: str
    model: str
    server: str | None
    """The server's own name for itself."""
    api: str
    """``openai``, or ``ollama`` for Ollama's own ``/api/chat`` if ``/v1`` is missing."""
    warm_up: float | None = None
    """Seconds until the first text of the first request, which may have loaded the model."""
    pair: Pair | None = None
    slots: Slots | None = None
    cut: Cut | None = None
    requests: int = 0
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)


async def probe(
    url: str, key: str | None, model: str | None, limits: Limits, say: Callable[[str], None]
) -> ProbeReport:
    """Test the server at ``url``. Raises RequestFailedError or BusyError if it cannot be tested at all."""
    base = base_url(url)
    async with make_client(base, limits.at_once + 1) as client:
        server = await find(client, base, key, model, limits.seconds)
        report = ProbeReport(base, server.endpoint.model, server.kind, "ollama" if server.native else "openai")
        run = _Run(server, limits, report, say)
        began = time.monotonic()
        try:
            await run.all()
        except TimeUpError:
            report.notes.append(f"the probe stopped after {limits.seconds:.0f} s; --seconds allows more")
        report.seconds = time.monotonic() - began
    return report


class _Run:
    """Runs the stages one after the other. Finished stages stay in the report, whatever happens later."""

    def __init__(self, server: Server, limits: Limits, report: ProbeReport, say: Callable[[str], None]) -> None:
        self._server = server
        self._limits = limits
        self._report = report
        self._say = say
        self._seed = time.time_ns()
        """Prompts differ from those of every earlier probe, so that no prefix cache contains them."""

    async def all(self) -> None:
        report, server = self._report, self._server
        self._say("warming up")
        report.warm_up = (await self._ask(MIN_TOKENS)).ttft
        self._say("one request alone, twice")
        alone = [await self._stream(FIRST_TOKENS)]
        rate = alone[0].rate if alone[0] is not None else None
        most = MAX_TOKENS if rate is None else round(min(MAX_TOKENS, max(MIN_TOKENS, rate * ANSWER_SECONDS)))
        alone.append(await self._stream(most))
        lone = [stream for stream in alone if stream is not None]
        rates = [stream.rate for stream in lone if stream.rate is not None]
        if rates and max(rates) > UNSTEADY * min(rates):
            report.notes.append(
                f"two requests alone ran at {rates[0]:.0f} and {rates[-1]:.0f} tok/s: the server may be busy "
                "with other work, so these results are uncertain"
            )
        for attempt in ("two requests at once", "two requests at once, again"):
            self._say(attempt)
            streams, _, _ = await self._at_once(2, most)
            pair = report.pair = judge_pair(lone, streams)
            if pair.verdict != "unclear":
                break
        self._say(f"{self._limits.at_once} requests at once")
        many = await self._at_once(self._limits.at_once, most)
        report.slots = count_slots(self._limits.at_once, *many, buffered=pair.buffered)
        if self._limits.longest:
            told = await told_context(server)
            self._say("longer and longer prompts")
            report.cut = await find_cut(
                self._ask_text, told, longest=self._limits.longest,
                left=lambda: server.deadline - time.monotonic(), seed=self._seed,
            )  # fmt: skip

    async def _ask_text(self, prompt: str, most: int) -> Completion:
        self._report.requests += 1
        return await self._server.ask(prompt, most)

    async def _ask(self, most: int) -> Completion:
        return await self._ask_text(bench_prompt(self._report.requests, self._seed, PROMPT_WORDS), most)

    async def _stream(self, most: int) -> Stream | None:
        began = time.monotonic()
        return stream_of(await self._ask(most), began)

    async def _at_once(self, count: int, most: int) -> tuple[list[Stream], int, int]:
        """The streams of answered requests, how many were refused with 503, and how many failed otherwise."""
        await open_connections(self._server.client, self._server.endpoint, count)
        began = time.monotonic()
        answers = await asyncio.gather(*(self._ask(most) for _ in range(count)), return_exceptions=True)
        refused = failed = 0
        streams = []
        for answer in answers:
            if isinstance(answer, BusyError):
                refused += 1
            elif isinstance(answer, RequestFailedError):
                failed += 1
                self._note_failure(answer)
            elif isinstance(answer, BaseException):
                raise answer
            elif (stream := stream_of(answer, began)) is not None:
                streams.append(stream)
        return streams, refused, failed

    def _note_failure(self, error: RequestFailedError) -> None:
        note = f"a request failed: {error}"
        if note not in self._report.notes:
            self._report.notes.append(note)
