"""The scheduler: ``plan()`` a step, somebody runs it, ``commit()`` what came out. Continuous batching.

One step holds every running decode (one token each) and prefill chunks up to the budget. Whoever stops frees its
slot in that very step and the next one waiting enters. When the pool runs out the newest admission is preempted and
later computed again; nothing fails. Between ``plan`` and ``commit`` requests may be added, cancelled and settings
changed: what the step is computing is only touched when it is committed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from engine.core.block_pool import BlockPool, blocks_for
from engine.core.request import FinishReason, Request, Row, State, StepPlan, StepResult
from engine.core.waiting import WaitingQueue
from engine.settings import LiveSettings, SettingsError


class QueueFullError(RuntimeError):
    """The waiting queue is at its depth. ``waiting`` and ``depth`` tell how full."""

    def __init__(self, waiting: int, depth: int) -> None:
        super().__init__(f"the queue is full: {waiting} of {depth} waiting")
        self.waiting = waiting
        self.depth = depth


class RequestTooLargeError(ValueError):
    """Prompt + most output exceed the context or the whole pool, so the request could never be finished."""


class EventKind(Enum):
    ADMITTED = "admitted"
    RESUMED = "resumed"
    PREEMPTED = "preempted"
    FIRST_TOKEN = "first_token"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a request, at ``time`` on the caller's monotonic clock."""

    kind: EventKind
    request: Request
    time: float
    tokens: int = 0
    """Preempted: computed tokens thrown away. Resumed: tokens to compute again."""


class Scheduler:
    """Who computes what in the next step, and what became of it.

    ``running`` holds the admitted requests that hold blocks, ``preempted`` those that lost them and wait to resume
    (they keep their slot), both ordered by first admission. The oldest running request can preempt all others and
    the pool holds it whole, so it always advances: that is what keeps every request live.
    """

    def __init__(self, settings: LiveSettings, pool: BlockPool) -> None:
        self.pool = pool
        self.waiting = WaitingQueue()
        self.running: list[Request] = []
        self.preempted: list[Request] = []
        self._by_id: dict[str, Request] = {}
        self._admissions = 0
        self._in_step: frozenset[str] = frozenset()
        self.validate(settings)
        self.settings = settings

    # -- from outside, also while a step runs ------------------------------------------------------------------

    def add(self, request: Request) -> None:
        """Queue a request. Raises RequestTooLargeError or QueueFullError; then nothing is kept.

        The depth counts those that really wait: a request that a free slot and free blocks would take in the next
        step is not held against it.
        """
        if request.id in self._by_id:
            raise ValueError(f"request id {request.id} is in use")
        if request.most_tokens > self.settings.context:
            raise RequestTooLargeError(
                f"prompt ({request.num_prompt_tokens}) + output ({request.sampling.max_tokens} tokens) exceed the "
                f"context of {self.settings.context}"
            )
        if request.most_tokens > self.pool.num_tokens:
            raise RequestTooLargeError(
                f"prompt ({request.num_prompt_tokens}) + output ({request.sampling.max_tokens} tokens) exceed the "
                f"whole KV pool of {self.pool.num_tokens}"
            )
        self.waiting.push(request)
        self._by_id[request.id] = request
        if len(self.waiting) - self._admissible_now() > self.settings.queue:
            self.waiting.remove(request.id)
            del self._by_id[request.id]
            raise QueueFullError(len(self.waiting), self.settings.queue)

    def cancel(self, request_id: str, now: float) -> list[Event]:
        """End a request in any state. One that a step is computing ends when that step is committed."""
        return self._ask_end(request_id, State.CANCELLED, now)

    def finish(self, request_id: str, num_output_tokens: int, now: float) -> list[Event]:
        """A stop string ended after ``num_output_tokens`` tokens: drop what was computed beyond it."""
        request = self._by_id.get(request_id)
        if request is not None and request.end_asked is None:
            request.finish_reason = FinishReason.STOP
            request.output_limit = num_output_tokens
        return self._ask_end(request_id, State.FINISHED, now)

    def fail(self, request_id: str, reason: str, now: float) -> list[Event]:
        """End a request by a fault of ours; ``reason`` is a sentence for its client. Not while a step computes it."""
        request = self._by_id.get(request_id)
        events: list[Event] = []
        if request is not None:
            request.failure = reason
            self._end(request, State.FAILED, now, events)
        return events

    def validate(self, settings: LiveSettings) -> None:
        """Raise SettingsError, naming reason and maximum, unless these settings can be honoured."""
        if settings.context > self.pool.num_tokens:
            raise SettingsError(
                f"context {settings.context} is more than the whole KV pool: at most {self.pool.num_tokens} tokens, "
                "or start with a larger --kv-tokens"
            )
        if settings.slots > self.pool.num_blocks:
            raise SettingsError(
                f"slots {settings.slots} is more than the KV pool has blocks: at most {self.pool.num_blocks}"
            )

    def update(self, settings: LiveSettings) -> None:
        """Put new settings in force from the next plan on. Raises SettingsError and changes nothing.

        Nobody is killed: with fewer slots admission waits, with a shorter queue those waiting stay, and a new
        context binds new requests only.
        """
        self.validate(settings)
        self.settings = settings

    def requests(self) -> Iterator[Request]:
        """Everybody in flight, in no particular order."""
        return iter(self._by_id.values())

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._by_id

    @property
    def num_in_flight(self) -> int:
        return len(self._by_id)

    @property
    def has_work(self) -> bool:
        return bool(self._by_id)

    def admitted(self) -> list[Request]:
        """Who holds a slot, by slot number."""
        return sorted([*self.running, *self.preempted], key=_slot)

    # -- one step --------------------------------------------------------------------------------------------

    def plan(self, now: float) -> tuple[StepPlan, list[Event]]:
        """Choose the rows of the next step. Must be followed by ``commit`` or ``fail_step`` of the same plan."""
        assert not self._in_step, "the step before was not committed"
        events: list[Event] = []
        decodes = self._plan_decodes(now, events)
        if not any(event.kind is EventKind.PREEMPTED for event in events):
            self._resume(now, events)
            self._admit(now, events)
        prefills = self._plan_prefills()
        plan = StepPlan(rows=(*decodes, *prefills), num_decodes=len(decodes))
        self._in_step = frozenset(row.request.id for row in plan.rows)
        return plan, events

    def commit(self, plan: StepPlan, result: StepResult, now: float) -> list[Event]:
        """Take over what the step computed: progress, new tokens, ends. ``now`` is the end of the step."""
        self._in_step = frozenset()
        events: list[Event] = []
        for row in plan.rows:
            request = row.request
            if request.end_asked is not None:
                self._end(request, request.end_asked, now, events)
                continue
            failure = result.failures.get(request.id)
            if failure is not None:
                request.failure = failure
                self._end(request, State.FAILED, now, events)
                continue
            request.num_computed_tokens += row.count
            if row.samples:
                self._append(request, result.tokens[request.id], now, events)
        return events

    def fail_step(self, plan: StepPlan, reason: str, now: float) -> list[Event]:
        """The step itself broke: its requests fail; whoever else runs is computed again, since KV may be damaged."""
        self._in_step = frozenset()
        events: list[Event] = []
        for row in plan.rows:
            row.request.failure = reason
            self._end(row.request, State.FAILED, now, events)
        for request in reversed(self.running.copy()):
            self._preempt(request, now, events)
        return events

    # -- planning ---------------------------------------------------------------------------------------------

    def _plan_decodes(self, now: float, events: list[Event]) -> list[Row]:
        """A row for every running decode, oldest first; the newest running request makes room when blocks run out."""
        rows: list[Row] = []
        for request in self.running.copy():
            if request.state is not State.RUNNING or not request.decoding:
                continue
            while len(request.block_ids) < blocks_for(request.num_tokens):
                if self.pool.can_allocate(1):
                    request.block_ids += self.pool.allocate(1)
                    continue
                victim = self.running[-1]
                self._preempt(victim, now, events)
                if victim is request:
                    break
            if request.state is State.RUNNING:
                rows.append(Row(request, request.num_computed_tokens, 1, samples=True))
        return rows

    def _resume(self, now: float, events: list[Event]) -> None:
        """Preempted requests come back oldest first, each only when its whole known length fits."""
        while self.preempted and self._fits(self.preempted[0], len(self.running), self.pool.num_free):
            request = self.preempted.pop(0)
            request.block_ids = self.pool.allocate(blocks_for(request.num_tokens))
            request.state = State.RUNNING
            assert request.preempted_at is not None
            request.stalled += now - request.preempted_at
            request.preempted_at = None
            self.running.append(request)
            self.running.sort(key=_admission)
            events.append(Event(EventKind.RESUMED, request, now, tokens=request.num_tokens))

    def _admit(self, now: float, events: list[Event]) -> None:
        for _ in range(self._admissible_now()):
            request = self.waiting.head
            assert request is not None
            self.waiting.remove(request.id)
            request.block_ids = self.pool.allocate(blocks_for(request.num_tokens))
            request.state = State.RUNNING
            request.slot = self._free_slot()
            request.admission = self._admissions
            request.timeline.scheduled = now
            self._admissions += 1
            self.running.append(request)  # the newest admission belongs at the end
            events.append(Event(EventKind.ADMITTED, request, now))

    def _admissible_now(self) -> int:
        """How many from the head of the queue a step could admit now. Nobody passes a preempted request."""
        if self.preempted:
            return 0
        running, free, count = len(self.running), self.pool.num_free, 0
        for request in self.waiting:
            if running >= self.settings.slots or not self._fits(request, running, free):
                break
            running, free, count = running + 1, free - blocks_for(request.num_tokens), count + 1
        return count

    @staticmethod
    def _fits(request: Request, running: int, free: int) -> bool:
        """Its whole known length, and a block for each running request, so that it is not preempted right away.

        Alone it needs no such margin, which keeps the oldest request live.
        """
        return blocks_for(request.num_tokens) + running <= free

    def _free_slot(self) -> int:
        taken = {request.slot for request in (*self.running, *self.preempted)}
        return next(slot for slot in range(len(taken) + 1) if slot not in taken)

    def _plan_prefills(self) -> list[Row]:
        """Split the budget: three quarters to the oldest prefill, one quarter to the shortest, the rest by age.

        So a short prompt is not stuck behind a long one, and many equal prompts do not all finish last.
        """
        prefills = [request for request in self.running if not request.decoding]
        if not prefills:
            return []
        remaining = {request.id: request.num_tokens - request.num_computed_tokens for request in prefills}
        budget = self.settings.budget
        shortest = min(prefills, key=lambda request: remaining[request.id])
        counts = dict.fromkeys(remaining, 0)
        if shortest is not prefills[0]:
            counts[shortest.id] = min(remaining[shortest.id], budget // 4)
        left = budget - counts[shortest.id]
        for request in prefills:
            share = min(remaining[request.id] - counts[request.id], left)
            counts[request.id] += share
            left -= share
        return [
            Row(request, request.num_computed_tokens, count, samples=count == remaining[request.id])
            for request in prefills
            if (count := counts[request.id]) > 0
        ]

    def _preempt(self, request: Request, now: float, events: list[Event]) -> None:
        thrown_away = request.num_computed_tokens
        self._release(request)
        self.running.remove(request)
        self.preempted.append(request)
        self.preempted.sort(key=_admission)
        request.state = State.PREEMPTED
        request.num_preemptions += 1
        request.recomputed_tokens += thrown_away
        request.preempted_at = now
        events.append(Event(EventKind.PREEMPTED, request, now, tokens=thrown_away))

    # -- ends -------------------------------------------------------------------------------------------------

    def _append(self, request: Request, token_id: int, now: float, events: list[Event]) -> None:
        request.token_ids.append(token_id)
        timeline = request.timeline
        if timeline.last_token is not None:
            request.gaps.append(now - timeline.last_token)
        timeline.last_token = now
        if timeline.first_token is None:
            timeline.first_token = now
            events.append(Event(EventKind.FIRST_TOKEN, request, now))
        if token_id in request.sampling.stop_token_ids:
            request.finish_reason = FinishReason.STOP
        elif request.num_output_tokens >= request.sampling.max_tokens:
            request.finish_reason = FinishReason.LENGTH
        if request.finish_reason is not None:
            self._end(request, State.FINISHED, now, events)

    def _ask_end(self, request_id: str, state: State, now: float) -> list[Event]:
        request = self._by_id.get(request_id)
        events: list[Event] = []
        if request is None:
            return events
        if request.id in self._in_step:
            request.end_asked = request.end_asked or state  # whoever asked first decides how it ends
        else:
            self._end(request, state, now, events)
        return events

    def _end(self, request: Request, state: State, now: float, events: list[Event]) -> None:
        """Take a request out of wherever it is and give back all it holds."""
        del self._by_id[request.id]
        if request.state is State.WAITING:
            self.waiting.remove(request.id)
        elif request.state is State.RUNNING:
            self.running.remove(request)
        else:
            self.preempted.remove(request)
            assert request.preempted_at is not None
            request.stalled += now - request.preempted_at
            request.preempted_at = None
        self._release(request)
        if request.output_limit is not None:
            del request.token_ids[request.num_prompt_tokens + request.output_limit :]
        request.state = state
        request.timeline.ended = now
        events.append(Event(EventKind(state.value), request, now))

    def _release(self, request: Request) -> None:
        self.pool.release(request.block_ids)
        request.block_ids = []
        request.num_computed_tokens = 0

    # -- self-check -------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise AssertionError unless every invariant of this room holds (see ``engine/README.md``)."""
        places = [*self.waiting, *self.running, *self.preempted]
        assert len(places) == len({request.id for request in places}) == len(self._by_id), "not in exactly one place"
        assert all(not request.block_ids for request in (*self.waiting, *self.preempted)), "a waiter holds blocks"
        assert all(request.state is State.WAITING for request in self.waiting)
        assert all(request.state is State.RUNNING for request in self.running)
        assert all(request.state is State.PREEMPTED for request in self.preempted)
        assert self.running == sorted(self.running, key=_admission)
        assert self.preempted == sorted(self.preempted, key=_admission)
        slots = [request.slot for request in (*self.running, *self.preempted)]
        assert None not in slots
        assert len(set(slots)) == len(slots), "a slot is held twice"
        for request in self.running:
            assert request.num_computed_tokens <= request.num_tokens
            assert len(request.block_ids) >= blocks_for(request.num_computed_tokens)
        self.pool.check(request.block_ids for request in self.running)


def _admission(request: Request) -> int:
    assert request.admission is not None
    return request.admission


def _slot(request: Request) -> int:
    assert request.slot is not None
    return request.slot
