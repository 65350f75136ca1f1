"""Records what the steps did for each request that lives or ended lately, within bounded memory.

Each token of a request refers to the step that generated it. So a step is stored once and a token costs one reference.
Of prompts and answers, only the lengths are kept.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from slotdeck.engine.core.events import Event
from slotdeck.engine.core.request import Request
from slotdeck.engine.core.step import SchedulerOutput
from slotdeck.engine.settings import LiveSettings
from slotdeck.engine.telemetry.frame import HostInfo, LimitInfo
from slotdeck.engine.telemetry.requests.detail import ChangeInfo, PrefillChunk, RequestDetail, StallInfo
from slotdeck.engine.telemetry.requests.gaps import Stall, Step, explain_gaps
from slotdeck.engine.telemetry.requests.slot_history import SlotHistory

MAX_ENDED = 200
"""Ended requests that are kept."""
MAX_ENDED_TOKENS = 100_000
"""Tokens of ended requests that are kept; the oldest requests go first."""
MAX_TOKENS = 4096
"""Tokens kept of one request, the newest."""
MAX_CHUNKS = 512
"""Prefill chunks kept of one request; further ones are added to the last one."""
MAX_STALLS = 256
MAX_CHANGES = 1000


@dataclass(frozen=True, slots=True)
class _Chunk:
    began: float
    seconds: float
    steps: int
    tokens: int
    others: int
    streams: int
    again: bool


@dataclass(slots=True)
class _Record:
    """One request. ``facts`` is read from the request itself when it ends, so that the request need not be kept."""

    request: Request | None
    arrived: float
    tokens: deque[Step] = field(default_factory=lambda: deque(maxlen=MAX_TOKENS))
    chunks: list[_Chunk] = field(default_factory=list)
    stalls: deque[Stall] = field(default_factory=lambda: deque(maxlen=MAX_STALLS))
    computed: int = 0
    """Highest number of computed tokens so far; a chunk below it is computed again."""
    busy: int | None = None
    ahead: int | None = None
    freed_by: str | None = None
    settings: LimitInfo | None = None
    facts: dict[str, Any] = field(default_factory=dict)

    def copy(self, now: float) -> _Record:
        """A record that no later step changes. It copies references, a bounded number, so it is quick."""
        return replace(
            self,
            tokens=self.tokens.copy(),
            chunks=self.chunks.copy(),
            stalls=self.stalls.copy(),
            facts=dict(self.facts or _facts(self.request, now)),
        )


class RequestLog:
    """Telemetry adds to it; any thread may read. ``clock`` is monotonic, ``wall`` the wall clock; seconds."""

    def __init__(self, clock: Callable[[], float], wall: Callable[[], float]) -> None:
        self._clock, self._wall = clock, wall
        self._lock = threading.Lock()
        self._live: dict[str, _Record] = {}
        self._ended: dict[str, _Record] = {}
        self._ended_tokens = 0
        self._slots = SlotHistory()
        self._changes: deque[tuple[float, str]] = deque(maxlen=MAX_CHANGES)
        self._step = Step(0.0, 0.0, 0, (), 0, False)
        self._swapping = False
        self._settings: LimitInfo | None = None

    # -- from telemetry ------------------------------------------------------------------------------------

    def on_host(self, host: HostInfo) -> None:
        """Remember whether the machine swaps now, which can make steps slow."""
        self._swapping = bool((host.os_swap_in or 0) + (host.os_swap_out or 0))

    def on_change(self, text: str) -> None:
        """A setting was changed, as ``text`` says."""
        with self._lock:
            self._changes.append((self._clock(), text))

    def on_settings(self, settings: LiveSettings, revision: int) -> None:
        """These are in force from now on."""
        limits = LimitInfo(revision=revision, **settings.model_dump())
        with self._lock:
            self._settings = limits

    def on_step(self, plan: SchedulerOutput, seconds: float, now: float) -> None:
        """A step was committed at ``now``."""
        prefills = tuple((row.request.id, row.request.user, row.count) for row in plan.rows[plan.num_decodes :])
        total = sum(count for _, _, count in prefills)
        with self._lock:
            step = Step(now, seconds, plan.num_decodes, prefills, self._step.prefill_total + total, self._swapping)
            self._step = step
            for place, row in enumerate(plan.rows):
                record = self._live.get(row.request.id)
                if record is None:
                    continue
                if place >= plan.num_decodes:
                    self._add_chunk(record, step, row.start, row.count, total - row.count)
                if row.samples and row.request.timeline.last_token == now:
                    record.tokens.append(step)

    @staticmethod
    def _add_chunk(record: _Record, step: Step, start: int, count: int, others: int) -> None:
        again = start < record.computed
        record.computed = max(record.computed, start + count)
        if len(record.chunks) >= MAX_CHUNKS:
            last = record.chunks[-1]
            record.chunks[-1] = replace(
                last,
                seconds=last.seconds + step.seconds,
                steps=last.steps + 1,
                tokens=last.tokens + count,
                others=last.others + others,
                streams=max(last.streams, step.decodes),
            )
        else:
            began = step.ended - step.seconds
            record.chunks.append(_Chunk(began, step.seconds, 1, count, others, step.decodes, again))

    def on_event(self, event: Event) -> None:
        """Something happened to a request."""
        request, kind = event.request, event.kind.value
        with self._lock:
            record = self._live.get(request.id)
            if record is None:
                record = self._begin(request, event.time)
            if kind == "admitted":
                self._leave_queue(record, request)
                record.settings = self._settings
                self._slots.on_admitted(event.time)
            elif kind == "preempted":
                record.stalls.append(Stall(event.time, event.tokens, event.swapped_bytes > 0, event.cause))
            elif kind == "resumed":
                self._end_stall(record, event.time)
            elif kind in ("finished", "cancelled", "failed", "rejected"):
                self._end(record, request, kind, event.time)

    def _begin(self, request: Request, now: float) -> _Record:
        record = _Record(request, self._wall() - (now - request.timeline.arrival))
        self._live[request.id] = record
        return record

    def _leave_queue(self, record: _Record, request: Request) -> None:
        """Note why it had to wait, when its wait is over."""
        queued = request.timeline.queued
        record.busy = self._slots.held_at(queued)
        record.ahead = self._slots.admitted_after(queued)
        record.freed_by = self._slots.freed_by(queued)

    @staticmethod
    def _end_stall(record: _Record, now: float) -> None:
        if record.stalls and record.stalls[-1].ended is None:
            record.stalls[-1] = replace(record.stalls[-1], ended=now)

    def _end(self, record: _Record, request: Request, kind: str, now: float) -> None:
        self._end_stall(record, now)
        record.facts = _facts(request, now) | {"state": kind}
        record.request = None
        del self._live[request.id]
        if request.timeline.scheduled is not None:
            self._slots.on_ended(now, request.user)
        else:
            self._leave_queue(record, request)
        self._ended[request.id] = record
        self._ended_tokens += len(record.tokens)
        while len(self._ended) > MAX_ENDED or self._ended_tokens > MAX_ENDED_TOKENS:
            oldest = self._ended.pop(next(iter(self._ended)))
            self._ended_tokens -= len(oldest.tokens)

    # -- to the admin API ----------------------------------------------------------------------------------

    def detail(self, request_id: str) -> RequestDetail | None:
        """The story of a request that has or had a slot, or that gave up waiting; ``None`` if it is not known.

        ``why`` is left empty.
        """
        with self._lock:
            record = self._live.get(request_id) or self._ended.get(request_id)
            if record is None:
                return None
            now = self._clock()
            record, changes = record.copy(now), list(self._changes)
        return _detail(record, changes, now)


def _detail(record: _Record, changes: list[tuple[float, str]], now: float) -> RequestDetail:
    """The answer of :meth:`RequestLog.detail` from a copy. It looks at every token, so nobody may hold a lock here."""
    facts = record.facts
    arrival = facts.pop("arrival")
    ended = facts.pop("ended")
    until = ended if ended is not None else now
    return RequestDetail(
        **facts,
        **explain_gaps(record.tokens, record.stalls, facts["request_id"], arrival),
        arrived=record.arrived,
        age=until - arrival,
        busy=record.busy,
        ahead=record.ahead,
        freed_by=record.freed_by,
        settings=record.settings,
        chunks=tuple(
            PrefillChunk(
                at=chunk.began - arrival, seconds=chunk.seconds, steps=chunk.steps, tokens=chunk.tokens,
                others=chunk.others, streams=chunk.streams, again=chunk.again,
            )
            for chunk in record.chunks
        ),
        stalls=tuple(
            StallInfo(
                at=stall.began - arrival, seconds=None if stall.ended is None else stall.ended - stall.began,
                tokens=stall.tokens, swapped=stall.swapped, cause=stall.cause,
            )
            for stall in record.stalls
        ),
        changes=tuple(ChangeInfo(at=time - arrival, text=text) for time, text in changes if arrival <= time <= until),
    )  # fmt: skip


def _facts(request: Request | None, now: float) -> dict[str, Any]:
    """What can be read from the request itself at ``now``."""
    assert request is not None
    timeline = request.timeline
    stalled = request.stalled + (now - request.preempted_at if request.preempted_at is not None else 0.0)
    wait = timeline.queue_wait
    return {
        "request_id": request.id,
        "user": request.user,
        "state": "decode" if request.decoding else "prefill",
        "slot": request.slot,
        "arrival": timeline.arrival,
        "ended": timeline.ended,
        "prompt_tokens": request.num_prompt_tokens,
        "cached_tokens": request.cached_tokens,
        "output_tokens": request.num_output_tokens,
        "max_tokens": request.sampling.max_tokens,
        "intake": timeline.intake,
        "queue_wait": (timeline.ended or now) - timeline.queued if wait is None else wait,
        "prefill": timeline.prefill,
        "ttft": timeline.ttft,
        "preemptions": request.num_preemptions,
        "recomputed_tokens": request.recomputed_tokens,
        "stalled": stalled,
        "finish_reason": request.finish_reason.value if request.finish_reason else None,
        "failure": request.failure,
    }
