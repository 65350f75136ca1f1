"""The pool's tensors: bytes as the arithmetic says, values as stored, sizes that change without losing any."""

from __future__ import annotations

import os
import random
import weakref
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from slotdeck.engine.core.kv_memory import KV_VALUE_BYTES, tokens_that_fit
from slotdeck.engine.core.step import ScheduledRequest, SchedulerOutput
from slotdeck.engine.model import kv_store
from slotdeck.engine.model import runner as runner_module
from slotdeck.engine.model.attention_backend import Span
from slotdeck.engine.model.config import ModelConfig, RopeScaling
from slotdeck.engine.model.errors import ModelError
from slotdeck.engine.model.kv_store import (
    KV_DTYPES,
    KVStore,
)
from slotdeck.engine.model.load import load_model
from slotdeck.engine.model.runner import Runner
from slotdeck.engine.model.torch_attention import TorchAttention
from tests.support.tiny_models import Driver, make_request, random_prompt, save_tiny_llama

CPU = torch.device("cpu")
TYPES = list(KV_DTYPES)


def sizes(layers: int = 3, kv_heads: int = 2, head_dim: int = 16) -> ModelConfig:
    return ModelConfig(
        id="sizes", architecture="LlamaForCausalLM", num_layers=layers, hidden_size=64, num_heads=4 * kv_heads,
        num_kv_heads=kv_heads, head_dim=head_dim, intermediate_size=64, vocab_size=300, max_positions=8192,
        rope_theta=1e4, rope_scaling=RopeScaling(), rms_norm_eps=1e-6, tie_embeddings=False,
        stop_token_ids=frozenset(),
    )  # fmt: skip


def fill(store: KVStore, seed: int = 0) -> list[torch.Tensor]:
    """Random K and V in every place; what is stored then, a copy."""
    torch.manual_seed(seed)
    rows = store.token_rows(torch.arange(store.num_blocks * 16))
    shape = (store.num_blocks * 16, store.num_kv_heads, store.head_dim)
    for layer in range(len(store.keys)):
        store.write(layer, rows, torch.randn(shape) * 3, torch.randn(shape))
    return [view.view(store.num_kv_heads, store.num_blocks, -1).clone() for view in store.blocks()]


def stored(store: KVStore) -> list[torch.Tensor]:
    return [view.view(store.num_kv_heads, store.num_blocks, -1) for view in store.blocks()]


def test_the_arithmetic_knows_the_size_of_every_kv_type() -> None:
    assert {name: dtype.itemsize for name, dtype in KV_DTYPES.items()} == KV_VALUE_BYTES


@pytest.mark.parametrize(("kv_dtype", "per_token"), [("fp32", 294_912), ("bf16", 147_456), ("fp16", 147_456)])
def test_bytes_of_the_worked_example(kv_dtype: str, per_token: int) -> None:
    """36 layers, 8 kv heads, head_dim 128 in 16 bit: 144 KiB a token, 8,192 tokens 1,207,959,552 bytes."""
    config = sizes(36, 8, 128)
    assert config.kv_bytes_per_token(kv_dtype) == config.token_bytes(kv_dtype) == per_token
    store = KVStore(config, 512, KV_DTYPES[kv_dtype], torch.device("meta"))
    assert store.bytes_allocated == per_token * 8192
    assert store.scale_bytes == 0
    if per_token == 147_456:
        assert store.bytes_allocated == 1_207_959_552
        assert 4.96 < tokens_that_fit(6_000_000_000, per_token) / 8192 < 4.97


def test_bytes_of_int8_and_its_scales_apart() -> None:
    config = sizes(36, 8, 128)
    store = KVStore(config, 512, torch.int8, torch.device("meta"))
    assert store.bytes_allocated == config.kv_bytes_per_token("int8") * 8192 == 73_728 * 8192
    assert store.scale_bytes == config.scale_bytes_per_token("int8") * 8192 == 2 * 36 * 8 * 4 * 8192
    assert store.block_bytes == config.token_bytes("int8") * 16


@pytest.mark.parametrize(("free", "tokens"), [(0, 0), (-5, 0), (15_999, 0), (16_000, 16), (31_999, 16), (10**9, 10**6)])
def test_tokens_that_fit_are_whole_blocks(free: int, tokens: int) -> None:
    assert tokens_that_fit(free, 1000) == tokens


@pytest.mark.parametrize("kv_dtype", TYPES)
def test_values_come_back_within_the_precision_of_the_type(kv_dtype: str) -> None:
    store = KVStore(sizes(), 6, KV_DTYPES[kv_dtype], CPU)
    slots = torch.tensor([5, 17, 40, 95])
    keys, values = torch.randn(4, 2, 16) * 20, torch.randn(4, 2, 16) / 100
    keys[1] = 0
    store.write(1, store.token_rows(slots), keys, values)
    blocks = store.block_rows(torch.arange(6)[None])
    for wanted, gathered in ((keys, store.gather_keys), (values, store.gather_values)):
        read = gathered(1, blocks).float().view(2, 96, 16)
        error = (read[:, slots].transpose(0, 1) - wanted).abs()
        largest = wanted.abs().amax(-1, keepdim=True)
        bound = {"fp32": 0.0, "bf16": 2**-8, "fp16": 2**-11, "int8": 0.501 / 127}[kv_dtype]
        assert (error <= largest * bound).all()
        unwritten = torch.ones(96, dtype=torch.bool).index_fill_(0, slots, False)
        assert not read[:, unwritten].any()
    assert not store.gather_keys(0, blocks).any()


@pytest.mark.parametrize("window", [None, 21])
@pytest.mark.parametrize("kv_dtype", TYPES)
def test_attention_reads_back_what_is_stored_whatever_the_chunk(kv_dtype: str, window: int | None) -> None:
    """Even the tokens of its own chunk, so that chunking changes nothing."""
    torch.manual_seed(0)
    store = KVStore(sizes(), 8, KV_DTYPES[kv_dtype], CPU)
    table = [6, 1, 4, 3]
    slots = torch.tensor([table[i // 16] * 16 + i % 16 for i in range(50)])
    keys, values, query = torch.randn(50, 2, 16) * 2, torch.randn(50, 2, 16), torch.randn(50, 8, 16)
    store.write(0, store.token_rows(slots), keys, values)
    read_k, read_v = (
        gather(0, store.block_rows(torch.tensor([table]))).float().view(2, 64, 16)[:, :50].clone()
        for gather in (store.gather_keys, store.gather_values)
    )
    grouped = query.to(store.compute_dtype).float().view(50, 2, 4, 16)
    scores = torch.einsum("qhsd,hkd->hsqk", grouped, read_k) / 4
    everywhere = torch.ones(50, 50, dtype=torch.bool)
    scores.masked_fill_(everywhere.triu(1), float("-inf"))
    if window is not None:
        scores.masked_fill_(everywhere.tril(-window), float("-inf"))
    wanted = torch.einsum("hsqk,hkd->qhsd", scores.softmax(-1), read_v).reshape(50, 8, 16)
    for chunk in (1, 7, 50):
        for start in range(0, 50, chunk):
            count = min(chunk, 50 - start)
            out = torch.empty(count, 8, 16)
            backend = TorchAttention(CPU, window)
            metadata = backend.build_metadata([Span(start, count, table)], slots[start : start + count].tolist(), store)
            backend.attend(store, 0, metadata, query[start : start + count], out)
            tolerance = 2e-2 if kv_dtype == "bf16" else 1e-5
            torch.testing.assert_close(out, wanted[start : start + count], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kv_dtype", TYPES)
def test_what_is_not_finite_is_seen_and_cleared(kv_dtype: str) -> None:
    store = KVStore(sizes(), 2, KV_DTYPES[kv_dtype], CPU)
    rows, blocks = store.token_rows(torch.tensor([3])), store.block_rows(torch.tensor([[0, 1]]))
    for bad in (float("nan"), float("inf"), *([1e6] if kv_dtype == "fp16" else [])):
        keys = torch.ones(1, 2, 16)
        keys[0, 1, 5] = bad
        store.write(2, rows, keys, keys)
        assert not torch.isfinite(store.gather_keys(2, blocks)).all()
        assert not torch.isfinite(store.gather_values(2, blocks)).all()
        store.clear(rows)
        assert not any(view.any() for view in store.blocks())


def test_num_03_overflow_of_fp16_fails_the_request_instead_of_garbling_it(tmp_path: Path) -> None:
    large = save_tiny_llama(tmp_path)
    with torch.no_grad():
        large.model.layers[1].self_attn.v_proj.weight *= 1e6
    large.save_pretrained(tmp_path)
    model = load_model(str(tmp_path), weights="fp32", device="cpu")
    prompt = random_prompt(random.Random(0), 20)
    for kv_dtype, fails in (("fp32", False), ("fp16", True)):
        driver = Driver(Runner(model, 4, kv_dtype), 4, random.Random(0))
        driver.generate([make_request("a", prompt)], 2)
        assert bool(driver.failures) is fails
        assert all(torch.isfinite(view).all() for view in driver.runner._store.blocks())


@pytest.mark.parametrize("kv_dtype", TYPES)
def test_move_reads_all_sources_before_it_writes(kv_dtype: str) -> None:
    store = KVStore(sizes(), 8, KV_DTYPES[kv_dtype], CPU)
    before = fill(store)
    store.move([(7, 2), (2, 5), (5, 7), (6, 0)])  # a ring and a single one
    wanted = [6, 1, 7, 3, 4, 2, 6, 5]
    for old, new in zip(before, stored(store), strict=True):
        assert torch.equal(new, old[:, wanted])
    store.move([])
    for pairs in ([(0, 8)], [(-1, 2)], [(9, 2)], [(1, 3), (2, 3)]):
        with pytest.raises(ValueError, match=r"block ids|same destination"):
            store.move(pairs)
    for old, new in zip(before, stored(store), strict=True):
        assert torch.equal(new, old[:, wanted])


@pytest.mark.parametrize("kv_dtype", TYPES)
def test_resizing_keeps_what_both_sizes_hold(kv_dtype: str) -> None:
    store = KVStore(sizes(), 12, KV_DTYPES[kv_dtype], CPU)
    before = fill(store)
    for size in (5, 5, 1, 30):
        store.resize(size)
        kept = min(size, 1) if size == 30 else size
        for old, new in zip(before, stored(store), strict=True):
            assert new.shape[1] == size
            assert torch.equal(new[:, :kept], old[:, :kept])
            assert not new[:, kept:].any()
        assert store.bytes_allocated + store.scale_bytes == size * 16 * sizes().token_bytes(kv_dtype)


@pytest.mark.parametrize(("old", "new"), [(12, 40), (40, 12)])
def test_resizing_takes_one_tensor_more_at_the_peak(monkeypatch: pytest.MonkeyPatch, old: int, new: int) -> None:
    store = KVStore(sizes(), old, torch.int8, CPU)
    fill(store)
    replaced: list[Any] = []
    inner = kv_store._resized

    def watch(tensor: torch.Tensor, num_blocks: int, device: torch.device) -> torch.Tensor:
        assert not any(reference() is not None for reference in replaced), "a replaced tensor is still held"
        resized = inner(tensor, num_blocks, device)
        replaced.append(weakref.ref(tensor.untyped_storage()))
        return resized

    monkeypatch.setattr(kv_store, "_resized", watch)
    store.resize(new)
    assert len(replaced) == 12


def test_memory_goes_back_to_the_machine() -> None:
    config = sizes(30, 3, 64)
    process = psutil.Process(os.getpid())
    store = KVStore(config, 1024, torch.float32, CPU)
    taken = store.bytes_allocated
    full = process.memory_info().rss
    store.resize(32)
    assert full - process.memory_info().rss > 0.8 * taken
    store.resize(1024)
    assert abs(process.memory_info().rss - full) < 0.2 * taken


@pytest.mark.parametrize(("new", "fails_at"), [(30, 0), (30, 4), (3, 7)])
def test_resizing_that_runs_out_of_memory_restores_the_old_size(
    monkeypatch: pytest.MonkeyPatch, new: int, fails_at: int
) -> None:
    store = KVStore(sizes(), 12, torch.int8, CPU)
    before = fill(store)
    inner, calls = kv_store._resized, 0

    def scarce(tensor: torch.Tensor, num_blocks: int, device: torch.device) -> torch.Tensor:
        nonlocal calls
        if num_blocks == new and (calls := calls + 1) > fails_at:
            raise torch.OutOfMemoryError("no")
        return inner(tensor, num_blocks, device)

    monkeypatch.setattr(kv_store, "_resized", scarce)
    with pytest.raises(torch.OutOfMemoryError):
        store.resize(new)
    kept = min(new, 12)
    assert store.num_blocks == 12
    for old, view in zip(before, stored(store), strict=True):
        assert torch.equal(view[:, :kept], old[:, :kept])


@pytest.mark.parametrize("kv_dtype", TYPES)
def test_run_02_the_pool_changes_size_under_running_requests(tmp_path: Path, kv_dtype: str) -> None:
    save_tiny_llama(tmp_path)
    model = load_model(str(tmp_path), weights="fp32", device="cpu")
    source = random.Random(3)
    prompts = [random_prompt(source, n) for n in (20, 55, 90)]

    def generate(resize: bool) -> list[list[int]]:
        driver = Driver(Runner(model, 32, kv_dtype), 32, random.Random(5), 32)
        requests = [make_request(str(i), prompt) for i, prompt in enumerate(prompts)]
        sizes = random.Random(7)
        while any(request.num_output_tokens < 30 for request in requests):
            driver.apply(driver.step(requests), requests)
            if resize:
                _resize(driver, requests, sizes.randint(24, 60))
        return [request.output_token_ids[:30] for request in requests]

    assert generate(resize=True) == generate(resize=False)


def _resize(driver: Driver, requests: list[Any], size: int) -> None:
    """Compact what is live to the low end, then resize, as the loop does."""
    live = [block for request in requests for block in request.block_ids]
    room = [block for block in range(size) if block not in live]
    new = {block: room.pop(0) for block in live if block >= size}
    driver.runner.move(list(new.items()))
    driver.runner.resize(size)
    for request in requests:
        request.block_ids = [new.get(block, block) for block in request.block_ids]
    live = [block for request in requests for block in request.block_ids]
    driver.free = [block for block in range(size) if block not in live]
    driver.random.shuffle(driver.free)
    assert driver.runner.num_blocks == size


def test_growing_is_refused_before_anything_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_tiny_llama(tmp_path)
    model = load_model(str(tmp_path), weights="fp32", device="cpu")
    runner = Runner(model, 10)
    request = make_request("a", random_prompt(random.Random(0), 20))
    request.block_ids = [3, 5]
    plan = SchedulerOutput(rows=(ScheduledRequest(request, 0, 20, True),), num_decodes=0)
    token = runner.run(plan).tokens["a"]
    per_token = model.config.kv_bytes_per_token("fp32")
    monkeypatch.setattr(runner_module, "available_memory", lambda device: 10 * 16 * per_token)
    with pytest.raises(ModelError, match=r"At most 256 tokens fit: lower --kv-tokens"):
        runner.resize(21)
    with pytest.raises(ModelError, match="at least one block"):
        runner.resize(0)
    runner.resize(16)
    monkeypatch.setattr(runner_module, "available_memory", lambda device: 0)
    runner.resize(6)  # what gives memory back is never refused
    assert runner.kv_bytes == 6 * 16 * per_token
    again = SchedulerOutput(rows=(ScheduledRequest(request, 19, 1, True),), num_decodes=0)
    assert runner.run(again).tokens["a"] == token

    def scarce(*_: Any) -> torch.Tensor:
        raise RuntimeError("can't allocate memory")

    monkeypatch.setattr(runner_module, "available_memory", lambda device: 1 << 40)
    with monkeypatch.context() as patch:
        patch.setattr(kv_store, "_resized", scarce)
        with pytest.raises(ModelError, match="it keeps its 96"):
            runner.resize(7)
    assert runner.run(again).tokens["a"] == token
