"""Random lives of a scheduler: arrivals, cancels, stops, faults, resizes, setting and mode changes; every invariant
after each step.

The runner of these tests is a KV store without numbers: it remembers for each place in the pool which prefix of which
cache_salt was written there, follows moves and swaps, and checks that every place that attention would read is right.
"""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

from slotdeck.engine.core.block_pool import BlockPool, blocks_for
from slotdeck.engine.core.events import Event, EventKind, QueueFullError, RequestTooLargeError
from slotdeck.engine.core.invariants import check_scheduler
from slotdeck.engine.core.request import FinishReason, Request, SamplingParams, State, Timeline
from slotdeck.engine.core.scheduler import Scheduler
from slotdeck.engine.core.step import ModelRunnerOutput, SchedulerOutput
from slotdeck.engine.settings import BLOCK_SIZE, LiveSettings, SettingsError

END_TOKEN = 7
NUM_BLOCKS = 12
Place = tuple[str, int]
"""Partition, and hash of all tokens up to and including the one whose KV this is."""


def next_token(tokens: list[int]) -> int:
    """A model-free model: the next token is a function of all tokens so far, so a lost or repeated one shows."""
    return (sum(tokens) * 31 + len(tokens) * 17) % 40 + 10


class PlaceStore:
    """What a KV store would hold."""

    def __init__(self) -> None:
        self.places: dict[int, Place] = {}
        self.host: dict[str, list[dict[int, Place]]] = {}

    def _block(self, block_id: int) -> dict[int, Place]:
        start = block_id * BLOCK_SIZE
        return {i: self.places[start + i] for i in range(BLOCK_SIZE) if start + i in self.places}

    def _put(self, block_id: int, content: dict[int, Place]) -> None:
        for i in range(BLOCK_SIZE):
            self.places.pop(block_id * BLOCK_SIZE + i, None)
        self.places |= {block_id * BLOCK_SIZE + i: place for i, place in content.items()}

    def move(self, moves: dict[int, int]) -> None:
        for source, destination in moves.items():
            self._put(destination, self._block(source))

    def swap(self, plan: SchedulerOutput) -> None:
        for swap in plan.swap_outs:
            self.host[swap.request_id] = [self._block(block_id) for block_id in swap.block_ids]
        for request_id in plan.swap_drops:
            del self.host[request_id]
        for swap in plan.swap_ins:
            for block_id, content in zip(swap.block_ids, self.host.pop(swap.request_id), strict=True):
                self._put(block_id, content)


class SchedulerMachine(RuleBasedStateMachine):
    """Drives the scheduler as the loop does."""

    alive = Bundle("alive")

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.counter = 0
        self.pool = BlockPool(NUM_BLOCKS)
        self.scheduler = Scheduler(
            LiveSettings(slots=3, context=128, queue=4, queue_share=100, budget=16, preemption="swap"),
            self.pool,
            block_bytes=10,
        )
        self.plan: SchedulerOutput | None = None
        self.store = PlaceStore()
        self.hashes: dict[str, list[int]] = {}
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

    def place(self, request: Request, position: int) -> Place:
        known = self.hashes.setdefault(request.id, [])
        while len(known) <= position:
            known.append(hash((known[-1] if known else 0, request.token_ids[len(known)])))
        return request.cache_salt, known[position]

    # -- what happens from outside, also between plan and commit ----------------------------------------------

    @rule(
        target=alive,
        user=st.sampled_from("ABC"),
        prompt=st.lists(st.integers(10, 12), min_size=1, max_size=60),
        beginning=st.sampled_from([0, 16, 33]),
        max_tokens=st.integers(1, 90),
        answers=st.sampled_from([1, 1, 1, 2, 3]),
    )
    def arrive(self, user: str, prompt: list[int], beginning: int, max_tokens: int, answers: int) -> str:
        prompt = [10] * beginning + prompt
        self.received += answers
        params = SamplingParams(max_tokens=max_tokens, stop_token_ids=frozenset({END_TOKEN}))
        requests = []
        for _ in range(answers):
            self.counter += 1
            timeline = Timeline(arrival=self.tick(), queued=self.now)
            requests.append(Request(f"r{self.counter}", user, list(prompt), params, timeline))
        too_large = len(prompt) + max_tokens > self.scheduler.settings.context
        waiting, known = len(self.scheduler.waiting), self.scheduler.num_in_flight
        of_user = self.scheduler.waiting.count(user)
        refusal: Exception | None = None
        try:
            self.scheduler.add(*requests)
        except (RequestTooLargeError, QueueFullError) as error:
            refusal = error
        assert too_large == isinstance(refusal, RequestTooLargeError)
        if refusal is None:
            self.prompts |= {request.id: list(prompt) for request in requests}
        else:
            limits = self.scheduler.settings
            share = max(1, limits.queue * limits.queue_share // 100)
            assert too_large or waiting + answers > limits.queue or of_user + answers > share
            assert self.scheduler.num_in_flight == known
            assert len(self.scheduler.waiting) == waiting
            self.refused += answers
        return requests[-1].id

    @rule(identity=consumes(alive))
    def cancel(self, identity: str) -> None:
        self.observe(self.scheduler.cancel(identity, self.tick()))
        if self.plan is None:
            assert identity not in self.scheduler

    @precondition(lambda self: any(r.num_output_tokens for r in self.scheduler.requests()))
    @rule(keep=st.integers(0, 5), data=st.data())
    def stop_string(self, keep: int, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from([r for r in self.scheduler.requests() if r.num_output_tokens]))
        keep = min(keep, request.num_output_tokens)
        self.observe(self.scheduler.finish(request.id, keep, self.tick()))

    @rule(
        slots=st.integers(1, 8),
        context=st.sampled_from([64, 128, 192, 512]),
        queue=st.integers(0, 6),
        queue_share=st.sampled_from([1, 50, 100]),
        budget=st.sampled_from([1, 2, 3, 7, 16, 64, 256]),
        mode=st.sampled_from(["serial", "static", "continuous", "continuous"]),
        preemption=st.sampled_from(["recompute", "swap"]),
        swap_space=st.sampled_from([0, 30, 1000]),
        prefix_cache=st.booleans(),
        prefix_sharing=st.booleans(),
        itl_target=st.sampled_from([0, 0, 500, 3000]),
    )
    def change(self, **values: object) -> None:
        before = self.scheduler.settings
        wanted = LiveSettings(**values)  # type: ignore[arg-type]
        try:
            self.scheduler.update(wanted)
        except SettingsError:
            assert wanted.context > self.pool.num_tokens or wanted.slots > self.pool.num_blocks
            assert self.scheduler.settings == before

    @precondition(lambda self: self.plan is None)
    @rule(num_blocks=st.integers(4, 24))
    def resize(self, num_blocks: int) -> None:
        before = self.pool.num_blocks
        largest = max((blocks_for(r.max_total_tokens) for r in self.scheduler.requests()), default=0)
        settings = self.scheduler.settings
        try:
            moves, events = self.scheduler.resize(num_blocks, self.tick())
        except SettingsError:
            assert num_blocks < max(largest, blocks_for(settings.context), settings.slots)
            assert self.pool.num_blocks == before
            return
        self.observe(events)
        assert not set(moves) & set(moves.values())
        self.store.move(moves)
        self.store.places = {k: v for k, v in self.store.places.items() if k < num_blocks * BLOCK_SIZE}
        assert self.pool.num_blocks == num_blocks

    # -- the step ---------------------------------------------------------------------------------------------

    @precondition(lambda self: self.plan is None and self.scheduler.has_work)
    @rule()
    def make_plan(self) -> None:
        scheduler = self.scheduler
        decoding = [r for r in scheduler.running if r.decoding]
        admitted_before, settings = len(scheduler.admitted()), scheduler.settings
        oldest = scheduler.running[0] if scheduler.running else None
        reserved = list(scheduler.running_set.reserved)
        plan, events = scheduler.schedule(self.tick())
        self.observe(events)
        kinds = {event.kind for event in events}
        policy = scheduler.policy
        slots = policy.slots(settings.slots)
        assert plan.rows or not scheduler.num_in_flight, "nothing runs while work exists"
        assert plan.num_prefill_tokens <= scheduler.budget_in_force
        if not settings.itl_target:
            assert scheduler.budget_in_force == settings.budget
        in_plan = {row.request.id for row in plan.rows}
        assert len(in_plan) == len(plan.rows)
        if plan.num_decodes or policy.name != "static":
            for request in decoding:
                assert request.id in in_plan or request.state is State.PREEMPTED, "a running decode missed a step"
        else:
            assert not decoding or plan.num_prefill_tokens, "a batch with all its prompts does not decode"
        if oldest is not None:
            assert oldest.state is State.RUNNING, "the oldest was preempted"
        assert len(scheduler.admitted()) <= max(slots, admitted_before), "more admitted than slots, and not draining"
        if EventKind.PREEMPTED in kinds:
            assert not kinds & {EventKind.ADMITTED, EventKind.RESUMED}, "admitted in a step that preempted"
        if EventKind.ADMITTED in kinds:
            assert len(scheduler.admitted()) <= slots
            assert policy.name == settings.mode, "admitted while another mode drains"
            if not policy.joins_running and admitted_before:
                newcomers = {event.request for event in events if event.kind is EventKind.ADMITTED}
                assert newcomers <= set(reserved), "somebody joined a batch that runs"
        for request in scheduler.running:
            if request.parent is not None and request.num_computed_tokens == 0:
                assert request.parent.state.ended or request.num_prompt_tokens <= BLOCK_SIZE or request.num_preemptions
        self.plan = plan

    @precondition(lambda self: self.plan is not None)
    @rule(bad=st.one_of(st.none(), st.integers(0, 7)), stops=st.one_of(st.none(), st.integers(0, 7)))
    def commit(self, bad: int | None, stops: int | None) -> None:
        plan, self.plan = self.plan, None
        assert plan is not None
        self.store.swap(plan)
        result = ModelRunnerOutput()
        for row in plan.rows:
            request = row.request
            assert row.start == request.num_computed_tokens
            for position in range(row.start, row.start + row.count):
                block_id = request.block_ids[position // BLOCK_SIZE]
                assert self.pool.refcount(block_id) == 1, "a shared block is written"
                assert block_id not in self.pool._content, "a published block is written"
                self.store.places[self.flat(request, position)] = self.place(request, position)
        for index, row in enumerate(plan.rows):
            request = row.request
            for position in range(row.start + row.count):
                found = self.store.places[self.flat(request, position)]
                assert found == self.place(request, position), "attention would read foreign KV"
            if index == bad:
                result.failures[request.id] = "NaN logits"
            elif row.samples:
                assert row.start + row.count == request.num_tokens
                result.tokens[request.id] = END_TOKEN if index == stops else next_token(request.token_ids)
        decodes = plan.num_decodes
        self.scheduler.cost.observe(
            decodes, plan.num_prefill_tokens, 100, 0.1 * decodes + 0.05 * plan.num_prefill_tokens
        )
        self.observe(self.scheduler.update_from_output(plan, result, self.tick()))

    @precondition(lambda self: self.plan is None and self.scheduler.has_work)
    @rule(steps=st.integers(2, 60))
    def run(self, steps: int) -> None:
        """Many steps with nothing from outside, so that pools fill up and batches end."""
        for _ in range(steps):
            if self.scheduler.has_work:
                self.make_plan()
                self.commit(bad=None, stops=None)
                check_scheduler(self.scheduler)

    @precondition(lambda self: self.plan is not None)
    @rule()
    def step_fails(self) -> None:
        plan, self.plan = self.plan, None
        assert plan is not None
        self.store = PlaceStore()  # whatever was there cannot be trusted
        self.observe(self.scheduler.fail_step(plan, "injected", self.tick()))
        assert not any(row.request.id in self.scheduler for row in plan.rows)
        assert not self.scheduler.running

    def flat(self, request: Request, position: int) -> int:
        return request.block_ids[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE

    # -- always -----------------------------------------------------------------------------------------------

    @invariant()
    def consistent(self) -> None:
        check_scheduler(self.scheduler)
        assert self.pool.num_used + self.pool.num_evictable + self.pool.num_free == self.pool.num_blocks
        assert self.received == self.refused + len(self.ended) + self.scheduler.num_in_flight
        assert self.scheduler.swapped_bytes <= 1000

    @invariant()
    def outputs_are_whole(self) -> None:
        """No token lost, repeated or changed, across preemption and everything else; stamps are in order."""
        for request in [*self.scheduler.requests(), *self.ended.values()]:
            prompt = self.prompts[request.id]
            assert request.token_ids[: len(prompt)] == prompt
            tokens = list(prompt)
            for token in request.output_token_ids:
                assert token in (END_TOKEN, next_token(tokens))
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
            check_scheduler(self.scheduler)
        assert not self.scheduler.has_work, "not live: work is left"
        assert self.pool.num_used == 0
        assert self.scheduler.swapped_bytes == 0
        assert self.store.host == {}, "host memory of somebody who is gone"
        assert not self.scheduler.held
        assert all(request.block_ids == [] for request in self.ended.values())
        assert self.received == self.refused + len(self.ended)


TestScheduler = SchedulerMachine.TestCase
TestScheduler.pytestmark = [pytest.mark.slow]
TestScheduler.settings = hypothesis_settings(max_examples=250, stateful_step_count=70)


def test_blocks_for_is_exact() -> None:
    assert [blocks_for(n) for n in (0, 1, 15, 16, 17, 32)] == [0, 1, 1, 1, 2, 2]
