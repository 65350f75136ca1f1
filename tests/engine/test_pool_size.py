"""The size of the KV pool, as the admin writes it and as the machine allows it."""

from __future__ import annotations

from typing import Any

import pytest

import slotdeck.engine.model.load
import slotdeck.engine.start
from slotdeck.engine.configuration import load_settings
from slotdeck.engine.settings import SettingsError, StartSettings
from slotdeck.engine.start import PoolMemory, choose_limits
from slotdeck.engine.units import parse_bytes
from tests.support.tiny_models import save_tiny_llama

MEMORY = PoolMemory(free=6_000_000_000, total=24_000_000_000, per_token=147_456)
"""A 24 GB card with 18 GB of it taken: a token of the worked example takes 144 KiB."""


def blocks(device: str = "cpu", **settings: Any) -> int:
    return choose_limits(StartSettings(**settings), 40_960, device, MEMORY)[1]


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.delenv("SLOTDECK_KV_TOKENS", raising=False)
    monkeypatch.delenv("SLOTDECK_CONFIG", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


@pytest.mark.parametrize(
    ("written", "value"),
    [(8192, 8192), ("8192", 8192), (" 16 ", 16), ("0.5", 0.5), (0.25, 0.25), (".9", 0.9), ("2GiB", "2GiB")],
)
def test_what_is_understood(written: Any, value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    read = load_settings({"kv_tokens": written}).kv_tokens
    assert (read, type(read)) == (value, type(value))
    monkeypatch.setenv("SLOTDECK_KV_TOKENS", str(written))
    assert load_settings().kv_tokens == value


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("15", "between 16 and"), (0, "between 16 and"), (-4096, "between 16 and"), (1 << 40, "between 16 and"),
        ("0.0", "above 0 and below 1"), (1.0, "above 0 and below 1"), ("-0.5", "above 0 and below 1"),
        ("2G", "bytes with their unit"), ("0GiB", "bytes with their unit"), ("much", "bytes with their unit"),
        ("", "bytes with their unit"), (True, "bytes with their unit"), ("nan", "bytes with their unit"),
    ],
)  # fmt: skip
def test_what_is_refused_says_what_to_write(written: Any, reason: str) -> None:
    with pytest.raises(SettingsError, match=f"--kv-tokens.*{reason}"):
        load_settings({"kv_tokens": written})


@pytest.mark.parametrize(
    ("text", "count"),
    [("2GiB", 2 << 30), ("1.5 gib", 3 << 29), ("500MB", 500_000_000), ("64kib", 65_536), ("10 B", 10), ("2T", None)],
)
def test_units_of_bytes(text: str, count: int | None) -> None:
    assert parse_bytes(text) == count


def test_the_pool_of_each_way_of_writing_it() -> None:
    assert blocks(slots=4, context=2048) == 4 * 2048 // 16
    assert blocks(kv_tokens=8200, context=2048) == 513
    assert blocks(kv_tokens="6GB", context=8192) == 6_000_000_000 // (147_456 * 16)
    assert blocks(kv_tokens=0.5, context=2048) == 3_000_000_000 // (147_456 * 16)


def test_a_gpu_is_filled_to_its_share_unless_asked_otherwise() -> None:
    """18 of 24 GB are taken, 0.92 of the card are 22.08 GB: the pool takes the 4.08 GB between."""
    assert blocks("cuda") == 4_080_000_000 // (147_456 * 16)
    assert blocks("cuda", kv_tokens=4096) == 256
    assert blocks("cuda", kv_tokens=0.5) == blocks(kv_tokens=0.5)


@pytest.mark.parametrize(
    ("settings", "way"),
    [
        ({"slots": 4, "context": 40_960}, r"--context 10160 \(the largest that fits for 4 slots\)$"),
        ({"slots": 4, "context": 16_384}, r"--context 10160 \(the largest that fits for 4 slots\) or --slots 2$"),
        ({"slots": 256, "context": 4096}, r"--context 144 \(the largest that fits for 256 slots\) or --slots 9$"),
        ({"kv_tokens": 50_000, "context": 8192}, r"set --kv-tokens to at most 40688$"),
        ({"kv_tokens": 50_000, "context": 40_960}, r"set --kv-tokens and --context to at most 40688$"),
        ({"kv_tokens": "10GB", "context": 8192}, r"set --kv-tokens to at most 40688$"),
    ],
)
def test_mod_07_a_pool_beyond_the_memory_is_refused_with_the_largest_that_fits(
    settings: dict[str, Any], way: str
) -> None:
    with pytest.raises(SettingsError, match=r"147 kB per token\), but only 6 GB are left beside the weights: .*" + way):
        blocks(**settings)


@pytest.mark.parametrize(
    ("settings", "asked"),
    [
        ({"kv_tokens": 50_000}, "--kv-tokens 50000 takes 7.37 GB"),
        ({"kv_tokens": "900GB"}, "--kv-tokens 900GB (6103504 tokens) takes 900 GB"),
        ({"kv_tokens": "900000GB"}, "--kv-tokens 900000GB (6103515616 tokens) takes 900 TB"),
        ({"slots": 32}, "the KV pool (65536 tokens) takes 9.66 GB"),
    ],
)
def test_a_refusal_says_what_was_asked_for(settings: dict[str, Any], asked: str) -> None:
    with pytest.raises(SettingsError) as refused:
        blocks(**settings)
    assert str(refused.value).startswith(f"{asked} (147 kB per token), but only 6 GB are left")


def test_mod_07_what_cannot_be_is_refused_before_the_weights_are_read(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "model"
    save_tiny_llama(folder)
    monkeypatch.setattr(slotdeck.engine.start, "load", lambda found: pytest.fail("the weights were read"))
    said: list[str] = []
    for wanted, message in (
        ({"slots": 256, "context": 512, "free": 30_000_000}, r"the KV pool \(131072 tokens\) takes .* set --context"),
        ({"context": 100_000}, "more than this model was trained for: at most 512"),
        ({"kv_tokens": 64, "context": 512}, "--kv-tokens 64 cannot hold one request of 512 tokens"),
    ):
        free = wanted.pop("free", 1 << 40)
        monkeypatch.setattr(slotdeck.engine.model.load, "available_memory", lambda device, free=free: free)
        settings = StartSettings(model=str(folder), weights="fp32", device="cpu", **wanted)  # type: ignore[arg-type]
        with pytest.raises(SettingsError, match=message):
            slotdeck.engine.start.start_engine(settings, "http://localhost", said.append)


@pytest.mark.parametrize(
    ("device", "settings", "message"),
    [
        ("cpu", {"kv_tokens": 1024}, "--kv-tokens 1024 cannot hold one request of 2048 tokens"),
        ("cpu", {"kv_tokens": "100MB"}, r"--kv-tokens 100MB \(672 tokens\) cannot hold one request of 2048"),
        ("cpu", {"kv_tokens": 0.01}, r"--kv-tokens 0.01 \(400 tokens\) cannot"),
        ("cuda", {"context": 40_000}, r"0.92 of the GPU's memory leaves room for \(27664 tokens\) cannot"),
    ],
)
def test_kv_01_a_pool_smaller_than_one_context_is_refused_at_start(
    device: str, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        blocks(device, **settings)
