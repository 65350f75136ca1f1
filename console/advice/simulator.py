"""Runs the engine's own scheduler on a virtual clock: minutes of traffic in seconds.

``engine/core`` makes all decisions. Only two things are simulated: how long a step takes
(:mod:`slotdeck.console.advice.step_model`), and what users send (:mod:`slotdeck.console.advice.traffic`).
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from slotdeck.console.advice.simulation_result import SimulationResult
from slotdeck.console.advice.step_model import StepTimes
from slotdeck.console.advice.traffic import Edge, Turn, User
from slotdeck.engine.core.block_pool import BlockPool, blocks_for
from slotdeck.engine.core.events import Event, EventKind, QueueFullError, RequestTooLargeError
from slotdeck.engine.core.invariants import check_scheduler
from slotdeck.engine.core.request import Request, SamplingParams, Timeline
from slotdeck.engine.core.scheduler import Scheduler
from slotdeck.engine.core.step import ModelRunnerOutput, SchedulerOutput
from slotdeck.engine.settings import BLOCK_SIZE, LiveSettings
from slotdeck.engine.telemetry.estimate import MAX_RETRY_JITTER, Pace, retry_after
from slotdeck.engine.telemetry.frame_builder import estimate_waits, queue_load
from slotdeck.engine.telemetry.step_log import StepWork, work_of
from slotdeck.engine.telemetry.windows import percentile

MAX_TRIES = 5
"""How often a user sends a message that is refused with 503 before giving it up."""
MIN_TURNAROUND = 1e-4
"""Seconds. Time must pass even if every request of a client that never pauses is refused for good."""
RECENT = 20
"""Number of finished requests from whose lengths a wait is estimated, as in the engine."""
SHARED_TOKENS = 24
"""Tokens of the chat template at the beginning of every conversation."""
CONVERSATION = 1 << 21
"""Number of token ids reserved for one conversation. Every position has its own id, so that the prefix cache only
finds text of the same conversation."""


class Watcher(Protocol):
    """Observes a simulation; ``simulated_frames`` makes frames of it.

    Times never decrease, except for what clients do while a step runs.
    """

    def watch(self, simulator: Simulator) -> None: ...

    def received(self, now: float) -> None: ...

    def rejected(self, user: str, reason: str, now: float) -> None: ...

    def too_long(self, user: str, reason: str, now: float) -> None: ...

    def happened(self, events: list[Event], now: float) -> None: ...

    def stepped(self, plan: SchedulerOutput, seconds: float, now: float, generated: int) -> None: ...

    def rest(self, until: float) -> None: ...

    def end(self) -> None: ...


@dataclass(slots=True)
class _Client:
    user: User
    turns: Iterator[Turn]
    conversation: int = 0
    length: int = 0
    """Tokens of the conversation so far, including answers."""
    turn: Turn | None = None
    tries: int = 0


class Simulator:
    """One simulated run of some users on one engine.

    A block takes ``block_bytes`` of host memory and ``block_copy_seconds`` to be copied there or back. ``check``
    asserts the invariants of the core after every step.
    """

    def __init__(
        self,
        settings: LiveSettings,
        times: StepTimes,
        edge: Edge | None = None,
        *,
        watcher: Watcher | None = None,
        block_bytes: int = 1,
        block_copy_seconds: float = 0.0,
        check: bool = False,
    ) -> None:
        self.now = 0.0
        self.scheduler = Scheduler(settings, BlockPool(blocks_for(settings.kv_tokens)), block_bytes)
        self.result = SimulationResult()
        self.times = times
        self._edge = edge or Edge()
        self._watcher = watcher
        self._block_copy_seconds = block_copy_seconds
        self._check = check
        self._random = random.Random(f"{times.seed}/retries")
        self._arrivals: list[tuple[float, int, _Client]] = []
        self._order = itertools.count()
        self._conversations = itertools.count(1)
        self._senders: dict[str, _Client] = {}
        self._lengths: deque[tuple[int, int]] = deque(maxlen=RECENT)
        self._gaps: deque[float] = deque(maxlen=64)
        self._prefills: deque[tuple[int, float]] = deque(maxlen=64)

    def run(self, users: Sequence[User]) -> SimulationResult:
        """Simulate until everything that the users sent is answered."""
        if self._watcher is not None:
            self._watcher.watch(self)
        fast = self._watcher is None and not self._check
        for user in users:
            self.begin(user)
        while True:
            self.receive(self.now)
            if self.scheduler.has_work:
                self._step()
                if fast:
                    self._fast_forward()
            elif (arrival := self.next_arrival) is not None:
                self.now = arrival
            else:
                break
            if self._watcher is not None:
                self._watcher.rest(self.now)
        if self._watcher is not None:
            self._watcher.end()
        return self.result

    # -- clients -----------------------------------------------------------------------------------------------

    def begin(self, user: User) -> None:
        """Schedule the user's first message."""
        self._next_turn(_Client(user, iter(user.turns)), after=0.0)

    @property
    def next_arrival(self) -> float | None:
        """When the next message reaches the queue; ``None`` if nobody sends any more."""
        return self._arrivals[0][0] if self._arrivals else None

    def _next_turn(self, client: _Client, after: float) -> None:
        """Schedule the client's next message if it comes in time; ``after`` is when the previous answer ended."""
        turn = next(client.turns, None)
        if turn is None:
            return
        sent = after + turn.think if turn.at is None else max(after, turn.at)
        if sent > client.user.seconds:
            return
        pause = 0.0 if client.turn is None else max(self._edge.turnaround, MIN_TURNAROUND)
        client.turn, client.tries = turn, 0
        if turn.fresh:
            client.conversation, client.length = next(self._conversations), 0
        self._send(client, sent + pause)

    def _send(self, client: _Client, arrival: float) -> None:
        assert client.turn is not None
        intake = self._edge.intake + self._edge.intake_token * (client.length + client.turn.message)
        heapq.heappush(self._arrivals, (arrival + intake, next(self._order), client))

    def receive(self, until: float) -> None:
        """Queue everything that has arrived by ``until``."""
        while self._arrivals and self._arrivals[0][0] <= until:
            queued, number, client = heapq.heappop(self._arrivals)
            self._queue(client, queued, number)

    def _queue(self, client: _Client, now: float, number: int) -> None:
        turn, scheduler, result = client.turn, self.scheduler, self.result
        assert turn is not None
        length = client.length + turn.message
        intake = self._edge.intake + self._edge.intake_token * length
        request = Request(
            id=str(number),
            user=client.user.name,
            token_ids=_tokens(client.conversation, length),
            sampling=SamplingParams(max_tokens=turn.answer),
            timeline=Timeline(now - intake, now),
        )
        if self._watcher is not None:
            self._watcher.received(now)
        try:
            self.submit(request)
        except QueueFullError as error:
            result.rejected += 1
            if self._watcher is not None:
                self._watcher.rejected(client.user.name, str(error), now)
            client.tries += 1
            if client.tries < MAX_TRIES:
                self._send(client, now + self._retry_after())
                return
            result.gave_up += 1
        except RequestTooLargeError as error:
            result.too_long += 1
            if self._watcher is not None:
                self._watcher.too_long(client.user.name, str(error), now)
        else:
            self._senders[request.id] = client
            waiting = len(scheduler.waiting)
            result.max_waiting = max(result.max_waiting, waiting)
            if self._num_admitted >= scheduler.policy.slots(scheduler.settings.slots):
                result.max_queued = max(result.max_queued, waiting)
            return
        client.length = length  # The message stays in the conversation although it was not answered.
        self._next_turn(client, now)

    def submit(self, request: Request) -> None:
        """Pass a request to the scheduler. Raises the exceptions of :meth:`Scheduler.add`."""
        self.scheduler.add(request)

    def _retry_after(self) -> float:
        """Seconds until a refused client tries again: the server's whole seconds, plus a random spread."""
        finished = len(self._lengths)
        seconds = sum(spent for _, spent in self._prefills)
        pace = Pace(
            output=sum(output for _, output in self._lengths) / finished if finished else None,
            prompt=sum(prompt for prompt, _ in self._lengths) / finished if finished else None,
            gap=percentile(self._gaps, 50),
            prompt_per_second=sum(tokens for tokens, _ in self._prefills) / seconds if seconds else None,
        )
        load = queue_load(self.scheduler)
        wait = estimate_waits(load, load.waiting + 1, pace)[-1]
        return retry_after(wait, self._random.randint(0, MAX_RETRY_JITTER))

    def token_of(self, request: Request) -> int:
        """The next token of a request's conversation."""
        return self._senders[request.id].conversation * CONVERSATION + len(request.token_ids)

    # -- steps -------------------------------------------------------------------------------------------------

    def _step(self) -> None:
        scheduler, result, watcher = self.scheduler, self.result, self._watcher
        plan, events = scheduler.schedule(self.now)
        self._observe(events)
        admitted = self._num_admitted
        result.max_admitted = max(result.max_admitted, admitted)
        if not scheduler.pool.num_free or (len(scheduler.waiting) and admitted < scheduler.settings.slots):
            result.pool_bound = True
        work = work_of(plan)
        seconds = self.times.draw(work)
        for swap in (*plan.swap_outs, *plan.swap_ins):
            seconds += len(swap.block_ids) * self._block_copy_seconds
        self.receive(self.now + seconds)
        self.now += seconds
        tokens = {}
        for row in plan.rows:
            if row.samples:
                request = row.request
                tokens[request.id] = self.token_of(request)
        events = scheduler.update_from_output(plan, ModelRunnerOutput(tokens), self.now)
        result.steps += 1
        if work.prefill_tokens:
            self._prefills.append((work.prefill_tokens, seconds))
        else:
            self._gaps.append(seconds)
        if watcher is not None:
            watcher.stepped(plan, seconds, self.now, len(tokens))
        self._observe(events)
        if self._check:
            check_scheduler(scheduler)

    @property
    def _num_admitted(self) -> int:
        scheduler = self.scheduler
        return len(scheduler.running) + len(scheduler.preempted) + len(scheduler.held)

    def _fast_forward(self) -> None:
        """Skip ahead over steps in which nothing is decided: all requests decode, none waits, ends or needs a block.

        The result is exactly that of planning and committing each step, at a fraction of the time. A test compares
        the two.
        """
        scheduler, running = self.scheduler, self.scheduler.running
        if not running or scheduler.preempted or len(scheduler.waiting):
            return
        count, context = 1 << 30, 0
        for request in running:
            if not request.decoding:
                return
            computed = request.num_computed_tokens
            context += computed
            count = min(
                count,
                BLOCK_SIZE - 1 - computed % BLOCK_SIZE,  # The step that fills a block publishes it.
                len(request.block_ids) * BLOCK_SIZE - computed,
                request.sampling.max_tokens - request.num_output_tokens - 1,
            )
        arrival = self._arrivals[0][0] if self._arrivals else float("inf")
        decodes, first = len(running), 0.0
        seconds: list[float] = []
        longest = self.times.model.spread[-1]
        while len(seconds) < count:
            work = StepWork(decodes, 0, 0, 0, context + len(seconds) * decodes, 0)
            if self.now + self.times.model.seconds(work) * longest >= arrival:
                break
            step = self.times.draw(work)
            seconds.append(step)
            self.now += step
            if len(seconds) == 1:
                first = self.now
        if not seconds:
            return
        for request in running:
            start = self.token_of(request)
            request.token_ids += range(start, start + len(seconds))
            request.num_computed_tokens += len(seconds)
            assert request.timeline.last_token is not None
            request.gaps.append(first - request.timeline.last_token)
            request.gaps += seconds[1:]
            request.timeline.last_token = self.now
            scheduler.waiting.charge(request.user, len(seconds))
        self._gaps += seconds
        self.result.steps += len(seconds)

    def _observe(self, events: list[Event]) -> None:
        if not events:
            return
        result = self.result
        if self._watcher is not None:
            self._watcher.happened(events, self.now)
        for event in events:
            request, timeline = event.request, event.request.timeline
            if event.kind is EventKind.ADMITTED:
                result.waits.append(timeline.queue_wait or 0.0)
                result.cached_tokens += request.cached_tokens
                result.prompt_tokens += request.num_prompt_tokens
            elif event.kind is EventKind.FIRST_TOKEN:
                result.ttfts.append(timeline.ttft or 0.0)
            elif event.kind is EventKind.PREEMPTED:
                result.preemptions += 1
            elif event.kind is EventKind.RESUMED:
                result.recomputed_tokens += event.tokens
            elif event.kind is EventKind.FINISHED:
                self.finished(request)

    def finished(self, request: Request) -> None:
        """Record a complete answer. Its user reads it and asks again."""
        result = self.result
        client = self._senders.pop(request.id)
        result.finished += 1
        result.generated += request.num_output_tokens
        result.gaps += request.gaps
        result.seconds = self.now
        self._lengths.append((request.num_prompt_tokens, request.num_output_tokens))
        client.length = request.num_tokens
        self._next_turn(client, self.now)


def _tokens(conversation: int, length: int) -> list[int]:
    """The token ids of a conversation: those of the template first, then ids that no other conversation has."""
    shared = min(SHARED_TOKENS, length)
    first = conversation * CONVERSATION
    return [*range(shared), *range(first + shared, first + length)]
