from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.loop_bench import Bench


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    made.loop.start()
    yield made
    made.release()
    made.loop.stop()
