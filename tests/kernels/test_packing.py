"""Packed weights: made once, mapped afterwards, made anew when the source changes; trouble with the disk costs time."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slotdeck.engine.kernels import build
from slotdeck.engine.kernels.library import Kernels
from slotdeck.engine.kernels.packed import PackedModel
from slotdeck.engine.model import packed_cache
from slotdeck.engine.model.hugging_face_folder import HuggingFaceCheckpoint
from slotdeck.engine.model.llama import packing
from slotdeck.engine.model.llama.packing import packed_bytes, packed_model
from tests.support.tiny_models import save_tiny_llama

pytestmark = pytest.mark.skipif(build.compiler() is None, reason="no C++ compiler")


@pytest.fixture(scope="module")
def library() -> Kernels:
    return Kernels(1)


@pytest.fixture
def folder(tmp_path: Path, own_cache: Path) -> Path:
    assert own_cache
    save_tiny_llama(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture(autouse=True)
def keep_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_cache, "_MIN_KEPT_BYTES", 0)


@pytest.fixture
def packs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one with each packing."""
    made: list[int] = []
    inner = packing._pack

    def counted(*arguments: Any) -> None:
        made.append(1)
        inner(*arguments)

    monkeypatch.setattr(packing, "_pack", counted)
    return made


def load(folder: Path, library: Kernels, weights: str = "int8") -> PackedModel:
    return packed_model(HuggingFaceCheckpoint(folder, "tiny"), library, 2, weights)


def same(a: PackedModel, b: PackedModel) -> bool:
    pairs = [(a.embedding, b.embedding), (a.head.codes, b.head.codes), (a.head.scales, b.head.scales)]
    for one, other in zip(a.layers, b.layers, strict=True):
        pairs += [(one.qkv.codes, other.qkv.codes), (one.down.scales, other.down.scales)]
        pairs += [(one.input_norm, other.input_norm), (one.gate_up.codes, other.gate_up.codes)]
    return all(np.array_equal(x, y) for x, y in pairs)


def test_a_second_start_maps_what_the_first_packed(folder: Path, library: Kernels, packs: list[int]) -> None:
    first = load(folder, library)
    second = load(folder, library)
    assert len(packs) == 1
    assert same(first, second)
    assert not second.embedding.flags.writeable
    (kept,) = (packed_cache.cache_folder() / "packed").iterdir()
    assert kept.stat().st_size >= packed_bytes(HuggingFaceCheckpoint(folder, "tiny").config, "int8")


def test_each_type_of_weights_has_its_own_file(folder: Path, library: Kernels, packs: list[int]) -> None:
    models = {weights: [load(folder, library, weights) for _ in range(2)] for weights in ("int8", "int4")}
    assert len(packs) == 2
    for weights, (first, second) in models.items():
        assert same(first, second)
        assert [product.bits for product in (first.layers[0].qkv, first.head)] == [4 if weights == "int4" else 8, 8]
    kept = {path.suffix: path.stat().st_size for path in (packed_cache.cache_folder() / "packed").iterdir()}
    assert kept[".int4"] < kept[".int8"]


def test_a_changed_source_replaces_its_packed_weights(folder: Path, library: Kernels, packs: list[int]) -> None:
    first = load(folder, library)
    save_tiny_llama(folder, seed=9)
    second = load(folder, library)
    assert len(packs) == 2
    assert not same(first, second)
    assert len(list((packed_cache.cache_folder() / "packed").iterdir())) == 1


@pytest.mark.parametrize("damage", ["cut", "empty", "other"])
def test_a_damaged_file_is_made_anew(folder: Path, library: Kernels, packs: list[int], damage: str) -> None:
    first = load(folder, library)
    (kept,) = (packed_cache.cache_folder() / "packed").iterdir()
    whole = kept.read_bytes()
    kept.unlink()  # what is mapped stays as it was
    kept.write_bytes({"cut": whole[:-100], "empty": b"", "other": b"x" * len(whole)}[damage])
    assert same(load(folder, library), first)
    assert len(packs) == 2


def test_without_room_on_the_disk_every_start_packs(
    folder: Path, library: Kernels, packs: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(folder)
    monkeypatch.setattr(packed_cache.shutil, "disk_usage", lambda _: usage._replace(free=1000))
    assert same(load(folder, library), load(folder, library))
    assert len(packs) == 2
    assert not list((packed_cache.cache_folder() / "packed").iterdir())


def test_a_packing_that_fails_leaves_no_file(folder: Path, library: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(packing, "_pack", broken)
    with pytest.raises(RuntimeError):
        load(folder, library)
    assert not list((packed_cache.cache_folder() / "packed").iterdir())


def test_packed_weights_go_with_their_model(folder: Path, library: Kernels, packs: list[int]) -> None:
    load(folder, library)
    other = folder.with_name("other")
    shutil.move(folder, other)
    load(other, library)
    assert len(packs) == 2
    assert len(list((packed_cache.cache_folder() / "packed").iterdir())) == 1


def test_a_small_model_is_not_kept(
    folder: Path, library: Kernels, packs: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_cache, "_MIN_KEPT_BYTES", 1 << 25)
    assert same(load(folder, library), load(folder, library))
    assert len(packs) == 2
    assert not (packed_cache.cache_folder() / "packed").exists()
