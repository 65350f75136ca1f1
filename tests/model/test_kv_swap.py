"""KV swap: byte for byte out and back, in the order that the plan promises, and nothing of it is left behind."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from slotdeck.engine.core.request import Request
from slotdeck.engine.core.step import ScheduledRequest, SchedulerOutput, Swap
from slotdeck.engine.model.kv_store import KV_DTYPES
from slotdeck.engine.model.load import LoadedModel, load_model
from slotdeck.engine.model.runner import Runner
from tests.support.tiny_models import Driver, make_request, random_prompt, save_tiny_llama

TYPES = list(KV_DTYPES)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = tmp_path_factory.mktemp("tiny")
    save_tiny_llama(folder)
    return load_model(str(folder), weights="fp32", device="cpu")


def plan(
    *rows: ScheduledRequest, outs: tuple[Swap, ...] = (), drops: tuple[str, ...] = (), ins: tuple[Swap, ...] = ()
) -> SchedulerOutput:
    return SchedulerOutput(rows=rows, num_decodes=0, swap_outs=outs, swap_drops=drops, swap_ins=ins)


def prefilled(runner: Runner, id: str, blocks: list[int], length: int = 40) -> Request:
    request = make_request(id, random_prompt(random.Random(id), length))
    request.block_ids = blocks
    runner.run(plan(ScheduledRequest(request, 0, length, True)))
    return request


def content(runner: Runner, blocks: list[int]) -> list[torch.Tensor]:
    store = runner._store
    return [view.index_select(0, store.rows_of(blocks)) for view in store.blocks()]


def same(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    return all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize("kv_dtype", TYPES)
def test_swap_is_byte_exact_into_other_blocks(model: LoadedModel, kv_dtype: str) -> None:
    runner = Runner(model, 12, kv_dtype)
    prefilled(runner, "a", [9, 2, 5])
    before = content(runner, [9, 2, 5])
    runner.run(plan(outs=(Swap("a", (9, 2, 5)),)))
    assert runner.swapped_bytes == runner.swapped_out == 3 * runner.block_bytes
    assert runner.swapped_in == 0
    prefilled(runner, "b", [2, 5, 9])
    assert (runner.swapped_bytes, runner.swapped_out, runner.swapped_in) == (3 * runner.block_bytes, 0, 0)
    runner.run(plan(ins=(Swap("a", (0, 9, 11)),)))
    assert same(content(runner, [0, 9, 11]), before)
    assert (runner.swapped_bytes, runner.swapped_out) == (0, 0)
    assert runner.swapped_in == 3 * runner.block_bytes


@pytest.mark.parametrize("kv_dtype", TYPES)
def test_text_is_the_same_with_swaps_as_without(model: LoadedModel, kv_dtype: str) -> None:
    prompts = [random_prompt(random.Random(i), n) for i, n in enumerate((20, 55, 90))]

    def generate(swapping: float) -> list[list[int]]:
        driver = Driver(Runner(model, 32, kv_dtype), 32, random.Random(5), 32)
        requests = [make_request(str(i), prompt) for i, prompt in enumerate(prompts)]
        chance, moved = random.Random(1), 0
        while any(request.num_output_tokens < 30 for request in requests):
            driver.apply(driver.step(requests), requests)
            if chance.random() < swapping:
                moved += _out_and_in(driver, chance.choice(requests))
        assert bool(moved) is bool(swapping)
        assert driver.runner.swapped_bytes == 0
        return [request.output_token_ids[:30] for request in requests]

    assert generate(swapping=0.4) == generate(swapping=0)


def _out_and_in(driver: Driver, request: Request) -> int:
    """Swap a request out and into other blocks; the old ones are overwritten in between."""
    old = request.block_ids
    driver.runner.run(plan(outs=(Swap(request.id, tuple(old)),)))
    others = [block for block in driver.free if block not in old][: len(old)]
    driver.runner.move([(others[0], block) for block in old])
    if len(others) < len(old):
        others = old
    driver.runner.run(plan(ins=(Swap(request.id, tuple(others)),)))
    request.block_ids = list(others)
    driver.free = [block for block in driver.free if block not in others]
    driver.free += [block for block in old if block not in others]
    return driver.runner.swapped_in


def test_one_step_swaps_out_then_drops_then_in_then_computes(model: LoadedModel) -> None:
    runner = Runner(model, 6)
    a = prefilled(runner, "a", [0, 1, 2])
    kept = content(runner, [0, 1, 2])
    runner.run(plan(outs=(Swap("a", (0, 1, 2)),)))
    prefilled(runner, "b", [0, 1, 2])
    prefilled(runner, "c", [3, 4, 5])
    # b leaves the blocks that a takes back in the same step, and a goes on computing in it; c is out and forgotten.
    expected = Runner(model, 6).run(plan(ScheduledRequest(_with_blocks(a, [0, 1, 2]), 0, 40, True))).tokens["a"]
    step = plan(
        ScheduledRequest(_with_blocks(a, [2, 0, 1]), 39, 1, True),
        outs=(Swap("b", (0, 1, 2)), Swap("c", (3, 4, 5))),
        drops=("c", "nobody"),
        ins=(Swap("a", (2, 0, 1)),),
    )
    result = runner.run(step)
    assert result.tokens == {"a": expected}
    assert runner.swapped_bytes == 3 * runner.block_bytes
    assert (runner.swapped_out, runner.swapped_in) == (6 * runner.block_bytes, 3 * runner.block_bytes)
    after = content(runner, [2, 0, 1])
    full = [0, 1, 3, 4]  # of both heads the two blocks that the row did not write
    assert all(torch.equal(x[full], y[full]) for x, y in zip(kept, after, strict=True))
    with pytest.raises(ValueError, match="no host copy of request c"):
        runner.run(plan(ins=(Swap("c", (3, 4, 5)),)))


def _with_blocks(request: Request, blocks: list[int]) -> Request:
    request.block_ids = blocks
    return request


def test_a_wrong_swap_is_an_error_and_loses_nothing(model: LoadedModel) -> None:
    runner = Runner(model, 6)
    prefilled(runner, "a", [0, 1, 2])
    before = content(runner, [0, 1, 2])
    with pytest.raises(ValueError, match="block ids"):
        runner.run(plan(outs=(Swap("a", (0, 6)),)))
    assert runner.swapped_bytes == 0
    runner.run(plan(outs=(Swap("a", (0, 1, 2)),)))
    for ins, message in ((Swap("a", (0, 1)), "3 blocks, not 2"), (Swap("a", (0, 1, -1)), "block ids")):
        with pytest.raises(ValueError, match=message):
            runner.run(plan(ins=(ins,)))
    runner.run(plan(ins=(Swap("a", (3, 4, 5)),)))
    assert same(content(runner, [3, 4, 5]), before)


def test_a_failing_step_leaks_no_host_copies(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = Runner(model, 6)
    prefilled(runner, "a", [0, 1, 2])
    b = make_request("b", random_prompt(random.Random(2), 30))
    b.block_ids = [0, 1]

    def broken(*_: Any) -> None:
        raise RuntimeError("no")

    with monkeypatch.context() as patch:
        patch.setattr(model.decoder._attention, "attend", broken)
        with pytest.raises(RuntimeError):
            runner.run(plan(ScheduledRequest(b, 0, 30, True), outs=(Swap("a", (0, 1, 2)),)))
    assert runner.swapped_bytes == 3 * runner.block_bytes
    runner.forget_swapped()
    assert runner.swapped_bytes == 0
    assert "b" in runner.run(plan(ScheduledRequest(b, 0, 30, True))).tokens


@pytest.mark.parametrize("copied_before", [False, True])
def test_when_host_memory_runs_out_nothing_of_the_request_is_held(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch, copied_before: bool
) -> None:
    runner = Runner(model, 6)
    prefilled(runner, "a", [0, 1, 2])
    if copied_before:
        runner.run(plan(outs=(Swap("a", (0, 1, 2)),)))
        assert runner.swapped_bytes == 3 * runner.block_bytes
    index_select = torch.index_select
    calls = 0

    def scarce(*arguments: Any, **options: Any) -> torch.Tensor:
        nonlocal calls
        if (calls := calls + 1) > 3:
            raise RuntimeError("can't allocate memory")
        return index_select(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "index_select", scarce)
        with pytest.raises(RuntimeError):
            runner.run(plan(outs=(Swap("a", (0, 1, 2)),)))
    assert runner.swapped_bytes == 0
    with pytest.raises(ValueError, match="no host copy"):
        runner.run(plan(ins=(Swap("a", (0, 1, 2)),)))


def test_swapping_out_again_replaces_the_copy(model: LoadedModel) -> None:
    runner = Runner(model, 6)
    prefilled(runner, "a", [0, 1, 2])
    runner.run(plan(outs=(Swap("a", (0, 1, 2)),)))
    runner.run(plan(outs=(Swap("a", (1, 2)),)))
    assert runner.swapped_bytes == 2 * runner.block_bytes
    kept = content(runner, [1, 2])
    runner.run(plan(ins=(Swap("a", (4, 5)),)))
    assert same(content(runner, [4, 5]), kept)


def test_swapped_copies_survive_a_resize(model: LoadedModel) -> None:
    runner = Runner(model, 6, "int8")
    prefilled(runner, "a", [3, 4, 5])
    before = content(runner, [3, 4, 5])
    runner.run(plan(outs=(Swap("a", (3, 4, 5)),)))
    for size, blocks in ((3, [2, 0, 1]), (40, [39, 20, 7])):
        runner.resize(size)
        runner.run(plan(ins=(Swap("a", tuple(blocks)),)))
        assert same(content(runner, blocks), before)
        runner.run(plan(outs=(Swap("a", tuple(blocks)),)))
