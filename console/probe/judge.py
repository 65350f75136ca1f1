"""What the times of a few streams say about a server. Pure: streams in, verdicts out.

A server that *queues* prints nothing of the second answer until the first is done. One that *batches* runs both at
once and gets more tokens a second out of them together than out of one alone. One that is *sharing bandwidth* runs
both, each at about half the speed: the machine, and no setting, is the limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal

from slotdeck.console.load.client import Completion

PairVerdict = Literal["queued", "batched", "sharing bandwidth", "unclear"]

TOGETHER = 0.5
"""Share of the shorter answer during which both must be written to count as running together."""
GAIN = 1.25
"""Speed of two together over that of one alone from which it counts as batching."""
HELD_BACK = 0.1
"""Share of its time during which a lone answer was written, below which it was held back on its way."""


@dataclass(frozen=True)
class Stream:
    """One answer. Seconds since its stage began; ``first`` and ``last`` are its first and last text."""

    first: float
    last: float
    tokens: int

    @property
    def rate(self) -> float | None:
        """Tokens per second from the first text to the last; ``None`` for an answer in one piece."""
        return (self.tokens - 1) / (self.last - self.first) if self.tokens > 1 and self.last > self.first else None


def stream_of(answer: Completion, began: float) -> Stream | None:
    """The times of an answer whose stage began at monotonic ``began``; ``None`` if it had no text."""
    if answer.first is None or answer.last is None:
        return None
    return Stream(answer.first - began, answer.last - began, answer.generated)


@dataclass(frozen=True)
class Pair:
    """What two requests at the same instant showed. Seconds; rates in tokens per second; ``None``: not measured."""

    verdict: PairVerdict
    alone_rate: float | None
    alone_first: float | None
    """First text of one alone, after it was sent."""
    firsts: tuple[float, ...] = ()
    lasts: tuple[float, ...] = ()
    together: float | None = None
    """Share of the shorter answer during which both were written."""
    rates: tuple[float | None, ...] = ()
    gain: float | None = None
    """Speed of both together over that of one alone."""
    buffered: bool = False
    """Texts came in one piece; only the ends were compared."""


def held_back(alone: Sequence[Stream]) -> bool:
    """Answers that had the server for themselves came all at once at their end: only that end can be timed."""
    return all(stream.last - stream.first < HELD_BACK * stream.last for stream in alone)


def judge_pair(alone: Sequence[Stream], pair: Sequence[Stream]) -> Pair:
    """Compare two answers asked for at the same instant with answers that ran alone."""
    rates = [stream.rate for stream in alone if stream.rate is not None]
    alone_rate = median(rates) if rates else None
    alone_first = median(stream.first for stream in alone) if alone else None
    if len(pair) != 2 or not alone:
        return Pair("unclear", alone_rate, alone_first)
    one, two = sorted(pair, key=lambda stream: (stream.first, stream.last))
    seen = Pair(
        "unclear", alone_rate, alone_first, (one.first, two.first), (one.last, two.last), rates=(one.rate, two.rate)
    )
    if held_back(alone):
        return _judge_ends(alone, one, two, alone_first)
    overlap = min(one.last, two.last) - two.first
    together = max(0.0, overlap) / max(1e-9, min(one.last - one.first, two.last - two.first))
    if overlap <= 0:
        return replace(seen, verdict="queued", together=0.0)
    if together < TOGETHER or alone_rate is None or one.rate is None or two.rate is None:
        return replace(seen, together=together)
    gain = (one.rate + two.rate) / alone_rate
    verdict: PairVerdict = "batched" if gain >= GAIN else "sharing bandwidth"
    return replace(seen, verdict=verdict, together=together, gain=gain)


def _judge_ends(alone: Sequence[Stream], one: Stream, two: Stream, alone_first: float | None) -> Pair:
    """Answers that arrive in one piece: two in a row take twice as long as one, and end one after the other."""
    lone = median(stream.last / stream.tokens for stream in alone)
    early, late = sorted((one, two), key=lambda stream: stream.last)
    apart = (late.last - early.last) / (lone * late.tokens)
    gain = lone * (one.tokens + two.tokens) / late.last
    verdict: PairVerdict = "queued" if apart > TOGETHER else "batched" if gain >= GAIN else "sharing bandwidth"
    ends = (early.last, late.last)
    return Pair(verdict, None, alone_first, firsts=ends, lasts=ends, gain=gain, buffered=True)


@dataclass(frozen=True)
class Slots:
    """What many requests at the same instant showed."""

    sent: int
    answered: int
    refused: int
    """With 503."""
    failed: int
    at_once: int | None
    """Most answers that were being written at the same time; ``None`` if that cannot be seen."""
    later: int = 0
    """Answers that began only after one had ended."""
    wait: float | None = None
    """Seconds until the first of those began."""

    @property
    def at_least(self) -> bool:
        """Everything that was sent and not refused ran at once: there may be more slots than that."""
        return self.at_once is not None and self.at_once == self.answered and self.refused == 0


def count_slots(sent: int, streams: Sequence[Stream], refused: int, failed: int, *, buffered: bool = False) -> Slots:
    """Slots in effect: the most answers that were written at the same time, unless texts come ``buffered``."""
    if not streams or buffered:
        return Slots(sent, len(streams), refused, failed, None)
    steps = sorted([(s.first, 1) for s in streams] + [(s.last, -1) for s in streams])
    running = most = 0
    for _, step in steps:
        running += step
        most = max(most, running)
    end = min(stream.last for stream in streams)
    later = [stream.first for stream in streams if stream.first >= end]
    return Slots(sent, len(streams), refused, failed, most, len(later), min(later, default=None))
