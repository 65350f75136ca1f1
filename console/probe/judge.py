"""Judges a server by the times of a few streams.

A server that *queues* sends nothing of the second answer until the first is done. A server that *batches* runs both at
once and generates more tokens per second than for one alone. A server that is *sharing bandwidth* runs both, each at
about half the speed: the machine is the limit, so no setting helps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal

from slotdeck.console.load.client import Completion

PairVerdict = Literal["queued", "batched", "sharing bandwidth", "unclear"]

TOGETHER = 0.5
"""Part of the shorter answer during which both must be written to count as running together."""
GAIN = 1.25
"""Speed of two together divided by that of one alone, from which it counts as batching."""
HELD_BACK = 0.1
"""If a lone answer arrives within less than this part of its time, something buffers it on the way."""


@dataclass(frozen=True)
class Stream:
    """One answer. ``first`` and ``last`` are the times of its first and last text, in seconds since its stage began."""

    first: float
    last: float
    tokens: int

    @property
    def rate(self) -> float | None:
        """Tokens per second from the first to the last text; ``None`` for an answer in one piece."""
        return (self.tokens - 1) / (self.last - self.first) if self.tokens > 1 and self.last > self.first else None


def stream_of(answer: Completion, began: float) -> Stream | None:
    """The times of an answer whose stage began at monotonic ``began``; ``None`` if it had no text."""
    if answer.first is None or answer.last is None:
        return None
    return Stream(answer.first - began, answer.last - began, answer.generated)


@dataclass(frozen=True)
class Pair:
    """The result of two simultaneous requests. Times in seconds, rates in tokens per second; ``None``: not measured."""

    verdict: PairVerdict
    alone_rate: float | None
    alone_first: float | None
    """Time to the first text of one request alone."""
    firsts: tuple[float, ...] = ()
    lasts: tuple[float, ...] = ()
    together: float | None = None
    """Part of the shorter answer during which both were written."""
    rates: tuple[float | None, ...] = ()
    gain: float | None = None
    """Speed of both together divided by that of one alone."""
    buffered: bool = False
    """The texts arrived in one piece, so only their ends were compared."""


def held_back(alone: Sequence[Stream]) -> bool:
    """True if lone answers arrived all at once at their end, so that only the end can be timed."""
    return all(stream.last - stream.first < HELD_BACK * stream.last for stream in alone)


def judge_pair(alone: Sequence[Stream], pair: Sequence[Stream]) -> Pair:
    """Compare two simultaneous answers with answers that ran alone."""
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
    """Judge answers that arrive in one piece. If they are queued, they end one after the other."""
    lone = median(stream.last / stream.tokens for stream in alone)
    early, late = sorted((one, two), key=lambda stream: stream.last)
    apart = (late.last - early.last) / (lone * late.tokens)
    gain = lone * (one.tokens + two.tokens) / late.last
    verdict: PairVerdict = "queued" if apart > TOGETHER else "batched" if gain >= GAIN else "sharing bandwidth"
    ends = (early.last, late.last)
    return Pair(verdict, None, alone_first, firsts=ends, lasts=ends, gain=gain, buffered=True)


@dataclass(frozen=True)
class Slots:
    """The result of many simultaneous requests."""

    sent: int
    answered: int
    refused: int
    """With 503."""
    failed: int
    at_once: int | None
    """The most answers that were written at the same time; ``None`` if that cannot be observed."""
    later: int = 0
    """Answers that began only after another one had ended."""
    wait: float | None = None
    """Seconds until the first of those began."""

    @property
    def at_least(self) -> bool:
        """True if all requests ran at once, so that there may be more slots."""
        return self.at_once is not None and self.at_once == self.answered and self.refused == 0


def count_slots(sent: int, streams: Sequence[Stream], refused: int, failed: int, *, buffered: bool = False) -> Slots:
    """Count the slots in effect: the most answers that were written at the same time.

    That cannot be observed if the texts arrive ``buffered``.
    """
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
