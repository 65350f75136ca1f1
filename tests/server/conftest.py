from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.stub_server import RunningServer, running


@pytest.fixture(scope="session")
def _shared(tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running(tokenizer, tmp_path_factory.mktemp("shared"), heartbeat=0.2) as server:
        yield server


@pytest.fixture
def server(_shared: RunningServer) -> Iterator[RunningServer]:
    """The shared server: 4 slots, context 512, queue 16, no keys. Each test must leave it idle and working."""
    yield _shared
    _shared.runner.gate.set()
    _shared.idle()
