"""The KV pool changes its size while people stream: prepared beside the steps, applied whole or not at all."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from slotdeck.engine.core.invariants import check_scheduler
from slotdeck.engine.loop import pool_resize
from slotdeck.engine.loop.live_changes import RevisionConflictError
from slotdeck.engine.settings import SettingsError
from tests.support.loop_bench import PATIENCE, Bench, balanced
from tests.support.remembering_runner import RememberingRunner

LARGE, SMALL = 1600, 320


class PoolBench(Bench):
    """Four slots over a pool of 1,600 tokens whose blocks remember their tokens; one block is copied at a time."""

    def __init__(self, **settings: Any) -> None:
        self.memory = RememberingRunner(LARGE // 16)
        super().__init__(runner=self.memory, **{"slots": 4, "context": 200, "queue": 8, "kv_tokens": LARGE} | settings)

    def resize(self, tokens: int, **arguments: Any) -> Any:
        return self.loop.change({"kv_tokens": tokens}, revision=None, source="test", **arguments)

    def in_thread(self, tokens: int) -> tuple[threading.Thread, list[object]]:
        """Ask for a size and give what became of it, once the thread has ended."""
        outcome: list[object] = []

        def ask() -> None:
            try:
                outcome.append(self.resize(tokens))
            except Exception as error:
                outcome.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        return thread, outcome

    def state(self) -> dict[str, Any]:
        """Everything that a change which was refused must leave as it was."""
        frame, _ = self.loop.frame(0, 0)
        scheduler = self.loop._state.scheduler
        return {
            "limits": frame.limits,
            "pool": frame.pool,
            "counters": frame.counters,
            "events": frame.events,
            "tables": {request.id: list(request.block_ids) for request in scheduler.requests()},
            "states": {request.id: request.state for request in scheduler.requests()},
            "tensors": (self.memory.tensors, self.memory.tensors.num_blocks),
        }


@pytest.fixture
def pool_bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[PoolBench]:
    monkeypatch.setattr(pool_resize, "SLICE_BYTES", 1)
    made = PoolBench()
    made.loop.start()
    yield made
    made.release()
    made.loop.stop()


def stream(bench: PoolBench, *names: str, output: int = 120) -> None:
    for name in names:
        bench.submit(name, prompt=40, output=output)


def test_flt_03_steps_frames_and_newcomers_go_on_while_memory_is_allocated(
    pool_bench: PoolBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, inside = threading.Event(), threading.Event()
    allocate = pool_bench.memory.allocate_pool

    def slow(num_blocks: int) -> Any:
        inside.set()
        assert go_on.wait(PATIENCE)
        return allocate(num_blocks)

    monkeypatch.setattr(pool_bench.memory, "allocate_pool", slow)
    asking, outcome = pool_bench.in_thread(4800)
    assert inside.wait(PATIENCE)
    stream(pool_bench, *"abcd")
    pool_bench.wait_for_end(*"abcd")
    assert pool_bench.loop.health() == ("ok", None)
    assert pool_bench.loop.frame(0, 0)[0].pool.total == LARGE
    assert not outcome
    go_on.set()
    asking.join(PATIENCE)
    assert pool_bench.loop.pool_tokens == 4800
    assert not pool_bench.memory.lost


@pytest.mark.parametrize("tokens", [4800, SMALL])
def test_flt_03_blocks_are_copied_in_slices_with_a_step_between_any_two(pool_bench: PoolBench, tokens: int) -> None:
    pool_bench.runner.allow(0)
    stream(pool_bench, "a", "b", output=150)
    pool_bench.steps(8)
    asking, _ = pool_bench.in_thread(tokens)
    pool_bench.release()
    asking.join(PATIENCE)
    pool_bench.wait_for_end("a", "b")
    calls = pool_bench.memory.calls
    began, ended = calls.index("copy_blocks"), calls.index("use_pool")
    slices = [place for place in range(began, ended) if calls[place] == "copy_blocks"]
    assert len(slices) > 4
    assert all(calls[place + 1] == "run" for place in slices[:-1]), "streams wait for one slice at most"
    assert pool_bench.memory.copies.count(1) >= len(slices) - 1
    assert not pool_bench.memory.lost
    assert [len(pool_bench.client.tokens[name]) for name in "ab"] == [150, 150]


def test_flt_03_the_lock_is_free_while_blocks_are_copied(
    pool_bench: PoolBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[bool] = []
    copy = pool_bench.memory.copy_blocks

    def watched(*arguments: Any) -> None:
        held.append(pool_bench.loop._state.lock.locked())
        copy(*arguments)

    monkeypatch.setattr(pool_bench.memory, "copy_blocks", watched)
    stream(pool_bench, "a")
    pool_bench.resize(4800)
    pool_bench.wait_for_end("a")
    pool_bench.resize(SMALL)
    assert held
    assert not any(held)


@pytest.mark.parametrize("room_for_both", [True, False])
def test_kv_no_token_is_lost_while_the_pool_changes_at_random(
    monkeypatch: pytest.MonkeyPatch, room_for_both: bool
) -> None:
    chance = random.Random(4)
    monkeypatch.setattr(pool_resize, "SLICE_BYTES", 3000)
    bench = PoolBench(queue=64)
    bench.memory.room_for_both = room_for_both
    bench.loop.start()
    names = [str(number) for number in range(40)]
    for name in names:
        bench.submit(name, prompt=chance.randint(1, 90), output=chance.randint(1, 100))
    sizes = []
    while len(bench.client.ends) < len(names):
        size = 16 * chance.randint(13, 80)
        bench.resize(size)
        sizes.append(bench.loop.pool_tokens)
        assert sizes[-1] == size
        with bench.loop._state.lock:
            assert bench.memory.tensors.num_blocks * 16 == size
        if chance.random() < 0.3:
            bench.loop.cancel(chance.choice(names))
    bench.loop.stop()
    check_scheduler(bench.loop._state.scheduler)
    assert bench.memory.lost == []
    assert balanced(bench)
    assert bench.loop.revision == bench.loop.frame(0, 0)[0].counters.pool_resizes
    assert len(sizes) > 2


def test_a_smaller_pool_preempts_the_newest_and_tells_it_once(pool_bench: PoolBench) -> None:
    pool_bench.runner.allow(0)
    stream(pool_bench, *"abcd")
    pool_bench.steps(60)
    asking, _ = pool_bench.in_thread(SMALL)
    pool_bench.release()
    asking.join(PATIENCE)
    pool_bench.wait_for_end(*"abcd")
    frame, _ = pool_bench.loop.frame(0, 0)
    shrunk = [event.user for event in frame.events if event.kind == "preempted" and "made smaller" in event.text]
    assert shrunk == ["d", "c", "b"][: len(shrunk)]
    assert shrunk
    assert [event.text for event in frame.events if event.kind == "setting_changed"] == [
        f"kv_tokens {LARGE} → {SMALL} by test"
    ]
    assert not pool_bench.memory.lost
    assert [len(pool_bench.client.tokens[name]) for name in "abcd"] == [120] * 4


@pytest.mark.parametrize(
    ("tokens", "fault"),
    [
        (4800, ("allocate_pool", 0)),
        (SMALL, ("allocate_pool", 0)),
        (4800, ("copy_blocks", 0)),
        (4800, ("copy_blocks", 3)),
        (SMALL, ("copy_blocks", 0)),
        (SMALL, ("copy_blocks", 3)),
        (4800, ("resize", 0)),
    ],
)
@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("no memory for the pool")])
def test_flt_05_a_fault_anywhere_changes_nothing_and_gives_the_reason(
    pool_bench: PoolBench,
    monkeypatch: pytest.MonkeyPatch,
    tokens: int,
    fault: tuple[str, int],
    error: Exception,
) -> None:
    method, calls_before = fault
    pool_bench.memory.room_for_both = method != "resize"
    stream(pool_bench, "before")
    pool_bench.wait_for_end("before")
    pool_bench.runner.allow(0)
    stream(pool_bench, *"abcd", output=150)
    pool_bench.steps(40)
    inner, calls = getattr(pool_bench.memory, method), 0

    def failing(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > calls_before:
            raise error
        return inner(*arguments)

    before = pool_bench.state()
    with monkeypatch.context() as patch:
        patch.setattr(pool_bench.memory, method, failing)
        asking, outcome = pool_bench.in_thread(tokens)
        while asking.is_alive():
            pool_bench.runner.allow(1)
            asking.join(0.005)
    assert [type(found) for found in outcome] == [SettingsError]
    assert str(error) in str(outcome[0])
    assert str(outcome[0])
    pool_bench.runner.allow(0)
    after = pool_bench.state()
    for name in ("limits", "events", "states", "tensors"):
        assert after[name] == before[name], name
    assert after["pool"].total == before["pool"].total == LARGE
    assert after["counters"].pool_resizes == 0
    for name, table in before["tables"].items():
        assert after["tables"][name][: len(table)] == table, "blocks moved"
    pool_bench.release()
    pool_bench.resize(tokens)  # the same value is not taken for the one in force
    assert pool_bench.memory.tensors.num_blocks * 16 == pool_bench.loop.pool_tokens == tokens
    pool_bench.wait_for_end(*"abcd")
    assert not pool_bench.memory.lost


@pytest.mark.parametrize("method", ["move", "resize"])
def test_flt_05_a_fault_in_place_leaves_the_old_size_and_computes_again(
    pool_bench: PoolBench, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """Without room for a second pool, blocks beyond the new end are given up before the tensors shrink."""
    pool_bench.memory.room_for_both = False
    pool_bench.runner.allow(0)
    stream(pool_bench, *"abcd", output=150)
    pool_bench.steps(40)

    def failing(*_arguments: Any) -> None:
        raise RuntimeError("no memory for the pool")

    with monkeypatch.context() as patch:
        patch.setattr(pool_bench.memory, method, failing)
        asking, outcome = pool_bench.in_thread(SMALL)
        pool_bench.release()
        asking.join(PATIENCE)
    assert str(outcome[0]) == "no memory for the pool"
    assert pool_bench.loop.pool_tokens == LARGE == pool_bench.memory.tensors.num_blocks * 16
    assert (pool_bench.loop.limits.kv_tokens, pool_bench.loop.revision) == (LARGE, 0)
    pool_bench.wait_for_end(*"abcd")
    assert not pool_bench.memory.lost
    assert [len(pool_bench.client.tokens[name]) for name in "abcd"] == [150] * 4


def test_flt_04_a_change_whose_caller_gave_up_never_applies(pool_bench: PoolBench) -> None:
    pool_bench.runner.allow(0)
    stream(pool_bench, "a")
    pool_bench.steps(3)
    with pytest.raises(SettingsError, match="withdrawn"):
        pool_bench.resize(4800, timeout=0.05)
    pool_bench.release()
    pool_bench.wait_for_end("a")
    assert (pool_bench.loop.pool_tokens, pool_bench.loop.revision) == (LARGE, 0)
    pool_bench.resize(800)
    assert pool_bench.memory.resized == [50], "the withdrawn change did not come back"
    assert pool_bench.loop.revision == 1


def test_flt_04_a_change_withdrawn_while_it_is_prepared_frees_what_it_allocated(
    pool_bench: PoolBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied, freed = threading.Event(), threading.Event()
    copy = pool_bench.memory.copy_blocks

    def watched(*arguments: Any) -> None:
        copy(*arguments)
        copied.set()

    monkeypatch.setattr(pool_bench.memory, "copy_blocks", watched)
    monkeypatch.setattr(pool_bench.memory, "free_pool", lambda pool: freed.set())
    pool_bench.runner.allow(0)
    stream(pool_bench, *"abcd", output=150)
    pool_bench.steps(20)
    pending = pool_bench.loop.begin_change({"kv_tokens": 4800}, revision=None, source="test")
    while not copied.is_set():
        pool_bench.runner.allow(1)
        copied.wait(0.005)
    assert pending.withdraw()
    pool_bench.release()
    assert freed.wait(PATIENCE)
    pool_bench.wait_for_end(*"abcd")
    assert pool_bench.memory.resized == []
    assert (pool_bench.loop.pool_tokens, pool_bench.loop.revision) == (LARGE, 0)


def test_flt_04_an_applied_change_cannot_be_withdrawn(pool_bench: PoolBench) -> None:
    pending = pool_bench.loop.begin_change({"kv_tokens": 800}, revision=0, source="test")
    assert pending.wait(PATIENCE).kv_tokens == 800
    assert not pending.withdraw()
    assert pending.wait(0).revision == 1


def test_a_change_made_meanwhile_wins_over_one_that_was_decided_before_it(pool_bench: PoolBench) -> None:
    pool_bench.runner.allow(0)
    stream(pool_bench, *"abcd")
    pool_bench.steps(10)
    pending = pool_bench.loop.begin_change({"kv_tokens": 4800}, revision=0, source="test")
    pool_bench.steps(3)
    pool_bench.loop.change({"budget": 32}, revision=0, source="other")
    pool_bench.release()
    with pytest.raises(RevisionConflictError):
        pending.wait(PATIENCE)
    assert pool_bench.loop.pool_tokens == LARGE
    pool_bench.wait_for_end(*"abcd")


def test_a_change_made_meanwhile_is_kept_by_one_that_named_no_revision(pool_bench: PoolBench) -> None:
    pool_bench.runner.allow(0)
    stream(pool_bench, *"abcd")
    pool_bench.steps(10)
    pending = pool_bench.loop.begin_change({"kv_tokens": 4800}, revision=None, source="test")
    pool_bench.steps(3)
    pool_bench.loop.change({"budget": 32}, revision=None, source="other")
    pool_bench.release()
    limits = pending.wait(PATIENCE)
    assert (limits.kv_tokens, limits.budget, limits.revision) == (4800, 32, 2)
    pool_bench.wait_for_end(*"abcd")


def test_changes_of_the_pool_follow_one_another(pool_bench: PoolBench) -> None:
    stream(pool_bench, "a")
    pending = [
        pool_bench.loop.begin_change({"kv_tokens": tokens}, revision=None, source="test")
        for tokens in (4800, 480, 1616)
    ]
    assert [change.wait(PATIENCE).revision for change in pending] == [1, 2, 3]
    assert pool_bench.memory.resized == [300, 30, 101]
    pool_bench.wait_for_end("a")


def test_a_loop_that_stops_refuses_the_change_it_was_preparing(
    pool_bench: PoolBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def slow(_num_blocks: int) -> None:
        inside.set()
        go_on.wait(PATIENCE)

    monkeypatch.setattr(pool_bench.memory, "allocate_pool", slow)
    pending = pool_bench.loop.begin_change({"kv_tokens": 4800}, revision=None, source="test")
    waiting = pool_bench.loop.begin_change({"kv_tokens": 480}, revision=None, source="test")
    assert inside.wait(PATIENCE)
    pool_bench.loop.stop()
    for change in (pending, waiting):
        with pytest.raises(SettingsError, match="stopped"):
            change.wait(PATIENCE)
    with pytest.raises(SettingsError, match="stopped"):
        pool_bench.resize(480)
    go_on.set()
