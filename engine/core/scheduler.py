"""The scheduler: ``schedule()`` a step, somebody runs it, ``update_from_output()`` what came out.

One step holds running decodes (one token each) and prefill chunks up to the budget. When the pool runs out the newest
admission is preempted and later computed again or copied back; nothing fails. While a step runs, requests may be added
and cancelled and settings may change; what the step computes is left alone until ``update_from_output``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from slotdeck.engine.core.admission import admissible, child_requests, fits
from slotdeck.engine.core.batching import POLICIES
from slotdeck.engine.core.block_pool import BlockPool, blocks_for
from slotdeck.engine.core.budget import MAX_BUDGET, ItlForecast, StepCost, split_budget
from slotdeck.engine.core.events import Event, EventKind, QueueFullError, RequestTooLargeError, UserQueueFullError
from slotdeck.engine.core.limits import check_pool_size, check_settings, max_waiting_per_user
from slotdeck.engine.core.request import FinishReason, Request, State
from slotdeck.engine.core.running_set import RunningSet, ShrinkPlan
from slotdeck.engine.core.step import ModelRunnerOutput, ScheduledRequest, SchedulerOutput
from slotdeck.engine.core.waiting import WaitingQueue
from slotdeck.engine.settings import LiveSettings


class Scheduler:
    """Who computes what in the next step, and what became of it.

    The oldest running request can preempt all others and the pool holds it whole, so it always advances: that is what
    keeps every request live. ``block_bytes`` is what one block takes in host memory.
    """

    def __init__(self, settings: LiveSettings, pool: BlockPool, block_bytes: int = 1) -> None:
        self.pool = pool
        self.waiting = WaitingQueue()
        self.running_set = RunningSet(pool, settings.prefix_cache, block_bytes)
        self.cost = StepCost()
        self.budget_in_force = settings.budget
        self.itl_forecast: ItlForecast | None = None
        """What becomes of the ITL target; ``None`` without one, without streams, and until enough was measured."""
        self._by_id: dict[str, Request] = {}
        self._in_step: frozenset[str] = frozenset()
        self.policy = POLICIES[settings.mode]
        check_settings(settings, pool.num_blocks)
        self.settings = settings

    # -- from outside, also while a step runs ------------------------------------------------------------------

    def add(self, *requests: Request) -> None:
        """Queue a request, or several answers to one prompt: all or none.

        Of several the first computes the prompt; the others wait for that and share its blocks. Raises
        RequestTooLargeError or QueueFullError; then nothing is kept. The limits count those that really wait: a request
        that a free slot and free blocks would take in the next step is not held against it.
        """
        parent = requests[0]
        for request in requests:
            if request.id in self._by_id:
                raise ValueError(f"request id {request.id} is in use")
            if request.max_total_tokens > self.settings.context:
                raise RequestTooLargeError(
                    f"prompt ({request.num_prompt_tokens}) + output ({request.sampling.max_tokens} tokens) exceed the "
                    f"context of {self.settings.context}"
                )
        for request in requests:
            request.set_cache_salt(self.cache_salt(request.user))
            request.parent = None if request is parent else parent
            self.waiting.push(request)
            self._by_id[request.id] = request
        user, depth, share = requests[0].user, self.settings.queue, max_waiting_per_user(self.settings)
        everybody, mine = self._num_really_waiting(user)
        if everybody > depth or mine > share:
            full = everybody > depth
            for request in requests:
                self.waiting.remove(request)
                del self._by_id[request.id]
            everybody, mine = self._num_really_waiting(user)
            if full:
                raise QueueFullError(everybody, depth, len(requests))
            raise UserQueueFullError(mine, share, len(requests))

    def _num_really_waiting(self, user: str) -> tuple[int, int]:
        """Requests in the queue that the next step would not admit: of everybody, and of ``user``."""
        entering = [request for request, _ in self._admissible()]
        everybody = len(self.waiting) - len(entering)
        return everybody, self.waiting.count(user) - sum(request.user == user for request in entering)

    def cache_salt(self, user: str) -> str:
        """Whose cached prefixes a request of ``user`` may use: all share theirs, or nobody does."""
        return "" if self.settings.prefix_sharing else user

    def cancel(self, request_id: str, now: float) -> list[Event]:
        """End a request in any state. One that a step is computing ends when that step is committed."""
        return self._request_end(request_id, State.CANCELLED, now)

    def finish(self, request_id: str, num_output_tokens: int, now: float) -> list[Event]:
        """A stop string ended after ``num_output_tokens`` tokens: drop what was computed beyond it."""
        request = self._by_id.get(request_id)
        if request is not None and request.requested_end is None:
            request.finish_reason = FinishReason.STOP
            request.output_limit = num_output_tokens
        return self._request_end(request_id, State.FINISHED, now)

    def fail(self, request_id: str, reason: str, now: float) -> list[Event]:
        """End a request by a fault of ours; ``reason`` is a sentence for its client. Not while a step computes it."""
        request = self._by_id.get(request_id)
        events: list[Event] = []
        if request is not None:
            request.failure = reason
            self._end(request, State.FAILED, now, events)
        return events

    def refuse(self, request_id: str, reason: str, now: float) -> list[Event]:
        """End a request that still waits, as one that was never taken; ``reason`` is a sentence for its client."""
        request = self._by_id.get(request_id)
        events: list[Event] = []
        if request is not None and request.state is State.WAITING:
            request.failure = reason
            self._end(request, State.REJECTED, now, events)
        return events

    def update(self, settings: LiveSettings) -> None:
        """Put new settings in force from the next step on. Raises SettingsError and changes nothing.

        Nobody is killed: with fewer slots admission waits, with a shorter queue those waiting stay, a new context binds
        new requests only, and a new mode takes over when what runs has ended. The pool itself: see :meth:`resize`.
        """
        check_settings(settings, self.pool.num_blocks)
        self.running_set.set_prefix_cache(settings.prefix_cache)
        policy = POLICIES[settings.mode]
        self.running_set.trim_reserved(policy.slots(settings.slots) if policy is self.policy else 0)
        if not settings.itl_target or settings.itl_target != self.settings.itl_target:
            self.budget_in_force, self.itl_forecast = (
                settings.budget,
                None,
            )  # an idle engine plans no step that would say so
        self.settings = settings
        if not self.running_set.num_taken:
            self.policy = policy  # nothing runs: an idle engine does not keep the old mode until somebody asks

    def plan_shrink(self, num_blocks: int, preferred: Mapping[int, int] | None = None) -> ShrinkPlan:
        """What :meth:`resize` to fewer blocks would do now; see :meth:`RunningSet.plan_shrink`. Changes nothing."""
        return self.running_set.plan_shrink(num_blocks, preferred)

    def blocks_to_keep(self, plan: ShrinkPlan | None = None) -> dict[int, int]:
        """Where each block of a resized pool takes its content from: new block id to present block id.

        ``plan`` belongs to a shrink; a larger pool keeps all content in its place.
        """
        kept = self.pool.blocks_with_content()
        if plan is None:
            return {block_id: block_id for block_id in kept}
        below = {block_id: block_id for block_id in kept if block_id < plan.num_blocks}
        return below | {destination: source for source, destination in plan.moves.items()}

    def resize(
        self, num_blocks: int, now: float, settings: LiveSettings | None = None, plan: ShrinkPlan | None = None
    ) -> tuple[dict[int, int], list[Event]]:
        """Change the size of the pool between two steps; gives the block moves that the tensors must follow.

        Shrinking gives up cached prefixes, preempts the newest as far as needed, and moves what is left below the new
        end. ``settings`` come into force with it; ``plan`` is that of :meth:`plan_shrink`, made since anything last
        changed. Raises SettingsError, and changes nothing, when the pool cannot honour settings or accepted requests.
        """
        assert not self._in_step, "a step is running"
        settings = settings or self.settings
        grows = num_blocks >= self.pool.num_blocks
        if grows:
            check_settings(settings, num_blocks)
        check_pool_size(num_blocks, settings, self.requests())
        moves: dict[int, int] = {}
        events: list[Event] = []
        if grows:
            self.pool.grow(num_blocks)
        else:
            plan = plan or self.plan_shrink(num_blocks)
            moves, events = plan.moves, self.running_set.shrink(plan, now)
        if settings is not self.settings:
            self.update(settings)
        return moves, events

    def recompute_all(self, now: float) -> list[Event]:
        """KV in the pool and in host memory may be damaged: every admitted request is computed again."""
        return self.running_set.discard_kv(now)

    # -- who is where ----------------------------------------------------------------------------------------

    @property
    def running(self) -> list[Request]:
        """The admitted requests that hold blocks, by first admission."""
        return self.running_set.running

    @property
    def preempted(self) -> list[Request]:
        """Those that lost their blocks and wait to resume, by first admission; they keep their slot."""
        return self.running_set.preempted

    @property
    def held(self) -> list[Request]:
        """Those that have ended but whose slot their batch keeps (static mode)."""
        return self.running_set.held

    def computes(self, request_id: str) -> bool:
        """Whether the step that runs now computes this request."""
        return request_id in self._in_step

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._by_id

    def requests(self) -> Iterator[Request]:
        """Everybody in flight, in no particular order."""
        return iter(self._by_id.values())

    @property
    def num_in_flight(self) -> int:
        return len(self._by_id)

    @property
    def has_work(self) -> bool:
        """Whether a step has anything to do; after the last end that can be giving back host memory."""
        return bool(self._by_id or self.running_set.swap.drops)

    def admitted(self) -> list[Request]:
        """Who holds a slot, by slot number; finished ones whose batch holds it included."""
        return self.running_set.taken()

    @property
    def swapped_bytes(self) -> int:
        """Host memory that preempted requests hold."""
        return self.running_set.swap.num_bytes

    # -- one step --------------------------------------------------------------------------------------------

    def schedule(self, now: float) -> tuple[SchedulerOutput, list[Event]]:
        """Choose what the next step computes. ``update_from_output`` or ``fail_step`` must follow."""
        assert not self._in_step, "the step before was not committed"
        events: list[Event] = []
        if not self.running_set.num_taken:
            self.policy = POLICIES[self.settings.mode]
        decodes = self._plan_decodes(now, events)
        if not any(event.kind is EventKind.PREEMPTED for event in events):
            decodes += self._resume(now, events)
            self._admit(now, events)
        prefills = self._plan_prefills(decodes)
        swap = self.running_set.swap
        scheduler_output = SchedulerOutput(
            rows=(*decodes, *prefills),
            num_decodes=len(decodes),
            swap_outs=tuple(swap.outs),
            swap_drops=tuple(swap.drops),
            swap_ins=tuple(swap.ins),
        )
        swap.forget_moves()
        self._in_step = frozenset(row.request.id for row in scheduler_output.rows)
        return scheduler_output, events

    def update_from_output(
        self, scheduler_output: SchedulerOutput, runner_output: ModelRunnerOutput, now: float
    ) -> list[Event]:
        """Take over what the step computed: progress, new tokens, ends. ``now`` is the end of the step."""
        self._in_step = frozenset()
        events: list[Event] = []
        for row in scheduler_output.rows:
            request = row.request
            failure = runner_output.failures.get(request.id)
            if failure is not None:
                request.failure = failure
                self._end(request, State.FAILED, now, events)
                continue
            request.num_computed_tokens += row.count
            self.running_set.publish(request)
            if request.requested_end is not None:
                self._end(request, request.requested_end, now, events)
            elif row.samples:
                self.waiting.charge(request.user, 1)
                self._append(request, runner_output.tokens[request.id], now, events)
        return events

    def fail_step(self, scheduler_output: SchedulerOutput, reason: str, now: float) -> list[Event]:
        """The step itself broke: its requests fail, but for those that were to end with it anyway.

        Whoever else is admitted is computed again and cached prefixes are forgotten, since KV may be damaged, in the
        pool and in host memory.
        """
        self._in_step = frozenset()
        events: list[Event] = []
        for row in scheduler_output.rows:
            row.request.failure = reason
            self._end(row.request, row.request.requested_end or State.FAILED, now, events)
        return events + self.recompute_all(now)

    # -- planning ---------------------------------------------------------------------------------------------

    def _plan_decodes(self, now: float, events: list[Event]) -> list[ScheduledRequest]:
        """A row for every running decode, oldest first; the newest running request makes room when blocks run out."""
        rows: list[ScheduledRequest] = []
        if not self._may_decode():
            return rows
        swap_space = self.settings.swap_space if self.settings.preemption == "swap" else 0
        for request in self.running.copy():
            if request.state is not State.RUNNING or not request.decoding:
                continue
            while len(request.block_ids) < blocks_for(request.num_tokens):
                if self.pool.num_available:
                    request.block_ids += self.pool.allocate(1)
                    continue
                victim = self.running[-1]
                events.append(self.running_set.preempt(victim, now, swap_space=swap_space))
                if victim is request:
                    break
            if request.state is State.RUNNING:
                rows.append(ScheduledRequest(request, request.num_computed_tokens, 1, samples=True))
        return rows

    def _may_decode(self) -> bool:
        """Whether the mode lets running requests decode now, or all of the batch are to have their prompts first."""
        policy = self.policy
        if policy.prefill_first and (self.running_set.awaits_more or next(self._admissible(), None) is not None):
            return False
        return policy.may_decode(self.running)

    def _resume(self, now: float, events: list[Event]) -> list[ScheduledRequest]:
        """Preempted requests come back oldest first, each only when its whole known length fits.

        Gives the rows of those that have nothing to compute again but their newest token.
        """
        rows: list[ScheduledRequest] = []
        while self.preempted:
            request = self.preempted[0]
            if not fits(self.running_set.cost_to_resume(request), len(self.running), self.pool.num_available):
                break
            events.append(self.running_set.resume(request, now))
            if request.decoding and self._may_decode():
                rows.append(ScheduledRequest(request, request.num_computed_tokens, 1, samples=True))
        return rows

    def _admit(self, now: float, events: list[Event]) -> None:
        forming = not self.running_set.num_taken
        while (found := next(self._admissible(forming=forming), None)) is not None:
            request, passed = found
            for other in passed:
                other.bypass_count += 1
            self.waiting.admit(request)
            events.append(self.running_set.admit(request, now))
            if self.policy.holds_slots:
                slots = self.policy.slots(self.settings.slots)
                self.running_set.reserve(child_requests(self.waiting, request), slots)

    def _admissible(self, *, forming: bool = False) -> Iterator[tuple[Request, Sequence[Request]]]:
        return admissible(self.waiting, self.running_set, self.pool, self.settings, self.policy, forming=forming)

    def _plan_prefills(self, decodes: Sequence[ScheduledRequest]) -> list[ScheduledRequest]:
        prefills = [request for request in self.running if not request.decoding]
        self.budget_in_force = self._choose_budget(decodes, prefills[0].num_computed_tokens if prefills else 0)
        counts = split_budget(prefills, self.budget_in_force)
        return [
            ScheduledRequest(request, start, count, samples=start + count == request.num_tokens)
            for request in prefills
            if (count := counts[request.id]) > 0
            for start in (request.num_computed_tokens,)
        ]

    def _choose_budget(self, decodes: Sequence[ScheduledRequest], prefilled: int) -> int:
        """The setting, or with an ITL target the most that running streams can bear.

        ``prefilled``: computed tokens of the oldest prefill, to which most of the budget goes.
        """
        self.itl_forecast = None
        if not self.settings.itl_target:
            return self.settings.budget
        if not decodes:
            return MAX_BUDGET
        context = sum(row.start for row in decodes)
        self.itl_forecast = self.cost.forecast_itl(self.settings.itl_target / 1000, len(decodes), context, prefilled)
        return self.settings.budget if self.itl_forecast is None else self.itl_forecast.budget

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

    def _request_end(self, request_id: str, state: State, now: float) -> list[Event]:
        request = self._by_id.get(request_id)
        events: list[Event] = []
        if request is None:
            return events
        if request.id in self._in_step:
            request.requested_end = request.requested_end or state  # whoever asked first decides how it ends
        else:
            self._end(request, state, now, events)
        return events

    def _end(self, request: Request, state: State, now: float, events: list[Event]) -> None:
        """Take a request out of wherever it is and give back all it holds."""
        del self._by_id[request.id]
        if request.state is State.WAITING:
            self.waiting.remove(request)
            self.running_set.give_up_reserved(request)
        else:
            self.waiting.leave(request.user)
            self.running_set.leave(request, now, hold=self.policy.holds_slots)
        if request.output_limit is not None:
            del request.token_ids[request.num_prompt_tokens + request.output_limit :]
        request.state = state
        request.timeline.ended = now
        events.append(Event(EventKind(state.value), request, now))
