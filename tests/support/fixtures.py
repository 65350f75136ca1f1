"""Fixtures that every folder of tests may ask for by name."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from slotdeck.engine.model.load import LoadedModel
    from tests.support.deck import Deck


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small byte-level tokenizer with a ChatML template."""
    from tests.support.tokenizer_folder import make_folder

    return make_folder(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture
def deck(tmp_path: Path) -> Iterator[Deck]:
    """Starts `slotdeck` with a fake engine and a fake console, and stops every engine that a test has started."""
    from tests.support.deck import Deck

    environment = {name: value for name, value in os.environ.items() if not name.startswith("SLOTDECK_")}
    environment |= {
        "XDG_RUNTIME_DIR": str(tmp_path / "runtime"),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "SLOTDECK_SOCKET": str(tmp_path / "engine.sock"),
        "TERM": "xterm-256color",
        "LANG": "C.UTF-8",
    }
    deck = Deck(tmp_path, environment)
    yield deck
    deck.close()


@pytest.fixture(scope="session")
def embedded_path() -> Path:
    """The embedded model in the user's cache. Tests that need it are skipped if it is not there."""
    from slotdeck.engine.model import fetch
    from slotdeck.engine.paths import cache_folder

    path = cache_folder() / "models" / fetch.GGUF_NAME
    if not path.is_file():
        pytest.skip("the embedded model is not in the cache: run `slotdeck model fetch`")
    return path


@pytest.fixture(scope="session")
def embedded_fp32(embedded_path: Path) -> LoadedModel:
    """The embedded model on the CPU with fp32 weights."""
    from slotdeck.engine.model.load import load_model

    return load_model("smollm2", weights="fp32", device="cpu")


@pytest.fixture(scope="session")
def embedded_reference(embedded_path: Path) -> PreTrainedModel:
    """The embedded model as transformers reads its GGUF file, in fp32, which takes many seconds.

    It generates beyond end tokens, because the requests that it is compared with do.
    """
    import torch
    from transformers import AutoModelForCausalLM

    reference = AutoModelForCausalLM.from_pretrained(
        embedded_path.parent, gguf_file=embedded_path.name, dtype=torch.float32
    ).eval()
    reference.generation_config.eos_token_id = None
    return reference


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder, used in place of the user's."""
    monkeypatch.setenv("SLOTDECK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"
