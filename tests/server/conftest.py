from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from slotdeck.engine.server import serve
from slotdeck.engine.server.connections import Connections
from slotdeck.engine.server.http_limits import HttpLimits
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


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Connections]:
    """The connections of the servers that this test starts: first those to the API, then those to the admin socket."""
    made: list[Connections] = []

    class Noted(Connections):
        def __init__(self, limits: HttpLimits) -> None:
            super().__init__(limits)
            made.append(self)

    monkeypatch.setattr(serve, "Connections", Noted)
    return made
