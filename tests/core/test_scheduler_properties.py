"""Random lives of a scheduler: arrivals, cancels, stops, faults, setting changes; every invariant after each step."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import settings as hypothesis_settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

from engine.core.block_pool import BlockPool, blocks_for
from engine.core.request import FinishReason, Request, SamplingParams, State, StepPlan, StepResult, Timeline
from engine.core.scheduler import Event, EventKind, QueueFullError, RequestTooLargeError, Scheduler
from engine.settings import BLOCK_SIZE, LiveSettings, SettingsError

END_TOKEN = 7
NUM_BLOCKS = 12


def token_after(request: Request) -> int:
    """A model-free model: the next token is a function of all tokens so far, so a lost or repeated one shows."""
    return (sum(request.token_ids) * 31 + len(request.token_ids) * 17) % 1000 + 10


class SchedulerMachine(RuleBasedStateMachine):
    """Drives the scheduler as the loop does, against a runner that checks that every token's KV is really there."""

    alive = Bundle("alive")

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.counter = 0
        self.pool = BlockPool(NUM_BLOCKS)
        self.scheduler = Scheduler(LiveSettings(slots=3, context=64, queue=4, budget=16), self.pool)
        self.plan: StepPlan | None = None
        self.written: dict[int, tuple[str, int, int]] = {}
        """Flat pool position -> (request id, position, token): what a real KV store would hold."""
        self.prompts: dict[str, list[int]] = {}
        self.ended: dict[str, Request] = {}
        self.received = self.refused = 0

    def tick(self) -> float:
        self.now += 1.0
        return self.now

    def observe(self, events: list[Event]) -> None:
        for event in events:
            if event.kind in (EventKind.FINISHED, EventKind.CANCELLED, EventKind.FAILED):
                assert event.request.id not in self.ended, "ended twice"
                self.ended[event.request.id] = event.request

    # -- what happens from outside, also between plan and commit ----------------------------------------------

    @rule(
        target=alive,
        prompt=st.lists(st.integers(10, 1000), min_size=1, max_size=60),
        max_tokens=st.integers(1, 60),
    )
    def arrive(self, prompt: list[int], max_tokens: int) -> str:
        self.counter += 1
        self.received += 1
        identity = f"r{self.counter}"
        params = SamplingParams(max_tokens=max_tokens, stop_token_ids=frozenset({END_TOKEN}))
        request = Request(identity, "user", list(prompt), params, Timeline(arrival=self.tick(), queued=self.now))
        too_large = len(prompt) + max_tokens > min(self.scheduler.settings.context, self.pool.num_tokens)
        waiting = len(self.scheduler.waiting)
        try:
            self.scheduler.add(request)
            assert not too_large
            self.prompts[identity] = list(prompt)
        except RequestTooLargeError:
            assert too_large
            self.refused += 1
        except QueueFullError:
            assert waiting >= self.scheduler.settings.queue
            assert identity not in self.scheduler
            self.refused += 1
        return identity

    @rule(identity=consumes(alive))
    def cancel(self, identity: str) -> None:
        self.observe(self.scheduler.cancel(identity, self.tick()))
        if self.plan is None:
            assert identity not in self.scheduler

    @rule(identity=consumes(alive), keep=st.integers(0, 5))
    def stop_string(self, identity: str, keep: int) -> None:
        request = next((r for r in self.scheduler.requests() if r.id == identity), None)
        if request is None or request.num_output_tokens < keep or request.num_output_tokens == 0:
            return
        self.observe(self.scheduler.finish(identity, keep, self.tick()))

    @rule(
        slots=st.integers(1, 8),
        context=st.sampled_from([64, 96, 128, 192, 256]),
        queue=st.integers(0, 6),
        budget=st.sampled_from([1, 2, 3, 7, 16, 64, 256]),
    )
    def change(self, slots: int, context: int, queue: int, budget: int) -> None:
        wanted = LiveSettings(slots=slots, context=context, queue=queue, budget=budget)
        before = self.scheduler.settings
        try:
            self.scheduler.update(wanted)
        except SettingsError:
            assert context > self.pool.num_tokens
            assert self.scheduler.settings == before

    # -- the step ---------------------------------------------------------------------------------------------

    @precondition(lambda self: self.plan is None and self.scheduler.has_work)
    @rule()
    def make_plan(self) -> None:
        scheduler = self.scheduler
        decoding = [r for r in scheduler.running if r.decoding]
        admitted_before, slots = len(scheduler.admitted()), scheduler.settings.slots
        oldest = scheduler.running[0] if scheduler.running else None
        plan, events = scheduler.plan(self.tick())
        self.observe(events)
        kinds = {event.kind for event in events}
        assert plan.rows, "nothing runs while work exists"
        assert plan.num_prefill_tokens <= scheduler.settings.budget
        in_plan = {row.request.id for row in plan.rows}
        assert len(in_plan) == len(plan.rows)
        for request in decoding:
            assert request.id in in_plan or request.state is State.PREEMPTED, "a running decode missed a step"
        if oldest is not None:
            assert oldest.state is State.RUNNING, "the oldest was preempted"
            if oldest in decoding:
                assert oldest.id in in_plan
        assert len(scheduler.admitted()) <= max(slots, admitted_before), "more admitted than slots, and not draining"
        if EventKind.PREEMPTED in kinds:
            assert not kinds & {EventKind.ADMITTED, EventKind.RESUMED}, "admitted in a step that preempted"
        if EventKind.ADMITTED in kinds:
            assert len(scheduler.running) <= slots
        assert len({r.slot for r in scheduler.admitted()}) == len(scheduler.admitted())
        self.plan = plan

    @precondition(lambda self: self.plan is not None)
    @rule(bad=st.one_of(st.none(), st.integers(0, 7)), stops=st.one_of(st.none(), st.integers(0, 7)))
    def commit(self, bad: int | None, stops: int | None) -> None:
        plan, self.plan = self.plan, None
        assert plan is not None
        result = StepResult()
        for index, row in enumerate(plan.rows):
            request = row.request
            assert row.start == request.num_computed_tokens
            for position in range(row.start, row.start + row.count):
                self.written[self.flat(request, position)] = (request.id, position, request.token_ids[position])
            for position in range(row.start + row.count):
                expected = (request.id, position, request.token_ids[position])
                assert self.written[self.flat(request, position)] == expected, "attention would read foreign KV"
            if index == bad:
                result.failures[request.id] = "NaN logits"
            elif row.samples:
                assert row.start + row.count == request.num_tokens
                result.tokens[request.id] = END_TOKEN if index == stops else token_after(request)
        self.observe(self.scheduler.commit(plan, result, self.tick()))

    @precondition(lambda self: self.plan is not None)
    @rule()
    def step_fails(self) -> None:
        plan, self.plan = self.plan, None
        assert plan is not None
        self.observe(self.scheduler.fail_step(plan, "injected", self.tick()))
        assert not any(row.request.id in self.scheduler for row in plan.rows)
        assert not self.scheduler.running

    def flat(self, request: Request, position: int) -> int:
        return request.block_ids[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE

    # -- always -----------------------------------------------------------------------------------------------

    @invariant()
    def consistent(self) -> None:
        self.scheduler.check()
        assert self.pool.num_used + self.pool.num_free == NUM_BLOCKS
        assert self.received == self.refused + len(self.ended) + self.scheduler.num_in_flight

    @invariant()
    def outputs_are_whole(self) -> None:
        """No token lost, repeated or changed, across preemption and everything else; stamps are in order."""
        for request in [*self.scheduler.requests(), *self.ended.values()]:
            prompt = self.prompts[request.id]
            assert request.token_ids[: len(prompt)] == prompt
            tokens = list(prompt)
            for token in request.output_token_ids:
                assert token in (END_TOKEN, (sum(tokens) * 31 + len(tokens) * 17) % 1000 + 10)
                tokens.append(token)
            line = request.timeline
            stamps = [line.arrival, line.queued, line.scheduled, line.first_token, line.last_token, line.ended]
            known = [stamp for stamp in stamps if stamp is not None]
            assert known == sorted(known)
            assert len(request.gaps) == max(0, request.num_output_tokens - 1) or request.output_limit is not None
            if request.state is State.FINISHED:
                assert request.finish_reason is not None
                if request.finish_reason is FinishReason.LENGTH:
                    assert request.num_output_tokens == request.sampling.max_tokens

    def teardown(self) -> None:
        """Whatever happened: left alone, everything ends, in bounded time, and every block comes back."""
        for _ in range(20_000):
            if self.plan is not None:
                self.commit(bad=None, stops=None)
            elif self.scheduler.has_work:
                self.make_plan()
            else:
                break
            self.scheduler.check()
        assert not self.scheduler.has_work, "not live: work is left"
        assert self.pool.num_used == 0
        assert all(request.block_ids == [] for request in self.ended.values())
        assert self.received == self.refused + len(self.ended)


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = hypothesis_settings(max_examples=150, stateful_step_count=60, deadline=None)


def test_blocks_for_is_exact() -> None:
    assert [blocks_for(n) for n in (0, 1, 15, 16, 17, 32)] == [0, 1, 1, 1, 2, 2]
