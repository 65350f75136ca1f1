"""Traffic as scripts: who asks when, how much, and how long the answers are.

Scripts are seeded, so that the simulator and a real engine can be given the same traffic. A script contains numbers of
tokens and no words. A conversation grows: each prompt is everything that was said before plus the new message.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from pydantic import BaseModel, ConfigDict

TrafficKind = Literal["chat", "agent", "documents"]
"""chat: people who read 20 to 60 s between two turns; agent: asks again at once; documents: long prompts with short
answers, one after another."""
KINDS: tuple[TrafficKind, ...] = get_args(TrafficKind)

MIN_CONVERSATION = 256
"""Tokens. Conversations are generated for a context of at least this size."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One message and its answer."""

    think: float
    """Seconds between the end of the previous answer (or the start) and this message."""
    message: int
    """Tokens that the message adds to the prompt, including its part of the template."""
    answer: int
    """Exact number of tokens of the answer."""
    fresh: bool
    """True if it begins a new conversation, so that the prompt contains nothing that was said before."""
    at: float | None = None
    """Seconds from the start at which it is sent, whatever happened before; ``None`` if ``think`` decides."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Ranges that turns are drawn from, both ends included. Times are in seconds, lengths in tokens."""

    think: tuple[float, float]
    start: tuple[float, float]
    """When a user sends the first message."""
    opening: tuple[int, int]
    """Length of the first message of a conversation."""
    message: tuple[int, int]
    answer: tuple[int, int]
    turns: tuple[int, int]
    """Number of turns of a conversation."""


SHAPES: dict[TrafficKind, Shape] = {
    "chat": Shape((20, 60), (0, 40), (40, 120), (20, 80), (60, 250), (2, 8)),
    "agent": Shape((0, 0), (0, 2), (150, 400), (40, 200), (40, 160), (2, 8)),
    "documents": Shape((0, 0), (0, 2), (700, 1500), (700, 1500), (30, 90), (1, 1)),
}


@dataclass(frozen=True, slots=True)
class Traffic:
    """``users`` of one kind for ``seconds``. Nothing is sent after that, but what was sent is answered.

    ``context`` limits prompt + answer of every turn: a conversation that would grow beyond it starts again, and a first
    message is shortened to fit.
    """

    kind: TrafficKind
    users: int
    seconds: float
    context: int
    seed: int = 1
    shape: Shape | None = None
    """Replaces the usual shape of the kind."""

    @property
    def drawn_from(self) -> Shape:
        return self.shape or SHAPES[self.kind]

    @property
    def max_tokens(self) -> int:
        """An upper bound for prompt + answer of every request of this traffic."""
        shape = self.drawn_from
        grown = shape.opening[1] + (shape.turns[1] - 1) * (shape.message[1] + shape.answer[1]) + shape.answer[1]
        return min(self.context, grown)

    def names(self) -> list[str]:
        return [f"~{self.kind}-{number + 1}" for number in range(self.users)]

    def script(self, user: int) -> Iterator[Turn]:
        """The turns of one user, without end."""
        return script(self.drawn_from, self.context, f"{self.seed}/{self.kind}/{user}")


def script(shape: Shape, context: int, seed: str) -> Iterator[Turn]:
    """Turns drawn from a shape, without end; prompt + answer never exceed ``context``.

    The same seed gives the same turns.
    """
    rng = random.Random(seed)
    context = max(context, MIN_CONVERSATION)
    used, left = 0, 0
    think = rng.uniform(*shape.start)
    while True:
        answer = min(rng.randint(*shape.answer), context // 4)
        message = rng.randint(*shape.message)
        opening = rng.randint(*shape.opening)
        turns = rng.randint(*shape.turns)
        fresh = left == 0 or used + message + answer > context
        if fresh:
            used, left = 0, turns
            message = min(opening, context - answer)
        used += message + answer
        left -= 1
        yield Turn(think, message, answer, fresh)
        think = rng.uniform(*shape.think)


def describe(traffic: Traffic) -> str:
    """The traffic in one line."""
    shape = traffic.drawn_from
    who = {"chat": "people who read", "agent": "agents that never pause", "documents": "jobs over documents"}
    pause = f" {shape.think[0]:.0f} to {shape.think[1]:.0f} s between turns" if shape.think[1] else ""
    return (
        f"{traffic.users} {who[traffic.kind]}{pause}, for {traffic.seconds:.0f} s; first messages of "
        f"{_range(shape.opening)} tokens, later ones of {_range(shape.message)}, answers of {_range(shape.answer)}"
    )


def _range(pair: Sequence[int]) -> str:
    return f"{pair[0]}–{pair[1]}"


class Edge(BaseModel):
    """The time between a client and the queue, in seconds."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    intake: float = 0.002
    """Reading and tokenizing a request, without the part that depends on its length."""
    intake_token: float = 2e-6
    """Added for each token of the prompt."""
    turnaround: float = 0.004
    """From the last token of an answer to the arrival of the next request of a client that does not pause."""


@dataclass(frozen=True, slots=True)
class User:
    """A name, and the turns that this user sends. Nothing is sent later than ``seconds`` after the start."""

    name: str
    turns: Iterable[Turn]
    seconds: float
