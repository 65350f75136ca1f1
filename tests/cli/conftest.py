"""Folders of their own for every test, and the end of every engine that a test started."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.deck import ROOT, Deck


@pytest.fixture
def deck(tmp_path: Path) -> Iterator[Deck]:
    """`slotdeck` in a terminal, with the fakes of :mod:`tests.support.deck_driver`."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SLOTDECK_")}
    environment |= {
        "XDG_RUNTIME_DIR": str(tmp_path / "runtime"),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "SLOTDECK_SOCKET": str(tmp_path / "engine.sock"),
        "PYTHONPATH": str(ROOT),
        "TERM": "xterm-256color",
        "LANG": "C.UTF-8",
    }
    deck = Deck(tmp_path, environment)
    yield deck
    deck.close()
