"""Finds out whether a server silently cuts prompts that are longer than its context.

Prompts consist of the same block of words, repeated. The server counts the tokens of two short prompts, which gives the
length of longer ones. If it counts fewer tokens for a long prompt, it cut that prompt. Each prompt begins with other
words, so that no cached beginning is missing from the count, and with a code word that is asked for at the end.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Literal

from slotdeck.console.load.client import BusyError, Completion, RequestFailedError, UnreachableError
from slotdeck.console.load.prompts import WORDS

CutVerdict = Literal["read whole", "cut silently", "refused", "unclear"]

SHORT, LESS_SHORT = 4, 12
"""Number of blocks in the two prompts that are counted first."""
BLOCK_WORDS = 20
TOKENS_PER_BLOCK = 30
"""For a server that counts no tokens: three English words have about four tokens."""
FIRST_SIZE = 1024
WHOLE = 0.9
"""Share of the expected tokens that the server must count."""
BEYOND = 1.25
"""Size of the second prompt, as a multiple of the context that the server reports."""
ANSWER_TOKENS = 16


@dataclass(frozen=True)
class LongPrompt:
    """One prompt and its result. Lengths are in tokens, times in seconds; ``None`` if unknown."""

    expected: int
    """Extrapolated from the counts of shorter prompts of the same words."""
    counted: int | None = None
    first: float | None = None
    """Time to the first text."""
    status: int | None = None
    """HTTP status of a refusal."""
    reason: str | None = None
    repeated: bool | None = None
    """Whether the answer repeats the code word; ``None`` if the model does not even do that for short prompts."""


@dataclass(frozen=True)
class Cut:
    """What the long prompts showed."""

    verdict: CutVerdict
    told: int | None
    """The context that the server reports, in tokens."""
    kept: int | None = None
    """Tokens that were left of the prompt that was cut."""
    prompts: tuple[LongPrompt, ...] = ()
    note: str | None = None
    """Why no longer prompt was sent."""


@dataclass(frozen=True)
class _Scale:
    """How the number of tokens depends on the number of blocks."""

    start: float
    per_block: float

    def tokens(self, blocks: int) -> int:
        return round(self.start + blocks * self.per_block)

    def blocks(self, tokens: int) -> int:
        return max(LESS_SHORT + 1, round((tokens - self.start) / self.per_block))


def sizes(told: int | None, longest: int) -> list[int]:
    """Lengths to try, in tokens: below and above a known context, or else doubled each time up to ``longest``."""
    if told is not None and told * BEYOND <= longest:
        return [told // 2, round(told * BEYOND)]
    found = [FIRST_SIZE]
    while found[-1] * 2 <= longest:
        found.append(found[-1] * 2)
    return found


async def find_cut(
    ask: Callable[[str, int], Awaitable[Completion]],
    told: int | None,
    *,
    longest: int,
    left: Callable[[], float],
    seed: int,
) -> Cut:
    """Send longer and longer prompts until one is cut or refused, or ``longest`` tokens were read completely.

    ``left`` returns the remaining seconds; a prompt that would take longer is not sent. Raises UnreachableError.
    """
    rng = random.Random(seed)
    block = " ".join(rng.sample(WORDS, BLOCK_WORDS))

    async def send(blocks: int, expected: int) -> LongPrompt:
        code = f"{rng.choice(WORDS)}-{rng.randint(100, 999)}"
        return await _send(ask, _prompt(rng, code, block, blocks), code, expected)

    short, longer = [await send(blocks, blocks * TOKENS_PER_BLOCK) for blocks in (SHORT, LESS_SHORT)]
    trusted = bool(short.repeated and longer.repeated)
    for prompt in (short, longer):
        if prompt.reason is not None:
            return Cut("refused" if prompt.status in (400, 413) else "unclear", told, prompts=(prompt,))
    if short.counted is None or longer.counted is None or longer.counted <= short.counted:
        scale = _Scale(0.0, TOKENS_PER_BLOCK)
    else:
        per_block = (longer.counted - short.counted) / (LESS_SHORT - SHORT)
        scale = _Scale(short.counted - SHORT * per_block, per_block)
    sent: list[LongPrompt] = []
    pace = longer.first / longer.expected if longer.first else 0.0
    for size in sizes(told, longest):
        blocks = scale.blocks(size)
        expected = scale.tokens(blocks)
        if pace * expected > left():
            note = f"a prompt of {expected} tokens would take about {pace * expected:.0f} s, longer than is left"
            return Cut("read whole" if sent else "unclear", told, prompts=tuple(sent), note=note)
        prompt = await send(blocks, expected)
        prompt = prompt if trusted else replace(prompt, repeated=None)
        sent.append(prompt)
        pace = prompt.first / expected if prompt.first else pace
        verdict = judge(prompt)
        if verdict != "read whole":
            return Cut(verdict, told, prompt.counted if verdict == "cut silently" else None, tuple(sent))
    return Cut("read whole", told, prompts=tuple(sent))


def judge(prompt: LongPrompt) -> CutVerdict:
    """The verdict on one long prompt. If the server counts no tokens, only the code word decides."""
    if prompt.reason is not None:
        return "refused" if prompt.status in (400, 413) else "unclear"
    if prompt.counted is not None:
        return "read whole" if prompt.counted >= WHOLE * prompt.expected else "cut silently"
    if prompt.repeated is None:
        return "unclear"
    return "read whole" if prompt.repeated else "cut silently"


def _prompt(rng: random.Random, code: str, block: str, blocks: int) -> str:
    start = " ".join(rng.choices(WORDS, k=3))
    words = " ".join([block] * blocks)
    return (
        f"{start}. The code word is {code}. {words}\n"
        "What is the code word that stands at the very beginning? Answer with that word alone."
    )


async def _send(ask: Callable[[str, int], Awaitable[Completion]], prompt: str, code: str, expected: int) -> LongPrompt:
    try:
        answer = await ask(prompt, ANSWER_TOKENS)
    except UnreachableError:
        raise
    except BusyError:
        return LongPrompt(expected, status=503, reason="the server is full")
    except RequestFailedError as error:
        return LongPrompt(expected, status=error.status, reason=str(error))
    return LongPrompt(expected, answer.prompt_tokens, answer.ttft, repeated=code in answer.text)
