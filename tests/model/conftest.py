"""Fixtures: a cache of its own for each session (with the embedded model linked in), small models on disk."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from slotdeck.engine.model import fetch
from slotdeck.engine.model.load import LoadedModel, load_model
from slotdeck.engine.paths import cache_folder


@pytest.fixture(scope="session")
def embedded_path() -> Path:
    """The embedded model in the user's cache; tests that need it are skipped without it."""
    path = cache_folder() / "models" / fetch.GGUF_NAME
    if not path.is_file():
        pytest.skip("the embedded model is not in the cache: run `slotdeck model fetch`")
    return path


@pytest.fixture(scope="session")
def embedded_fp32(embedded_path: Path) -> LoadedModel:
    return load_model("smollm2", weights="fp32", device="cpu")


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder, in place of the user's."""
    monkeypatch.setenv("SLOTDECK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def two_threads() -> None:
    torch.set_num_threads(2)
