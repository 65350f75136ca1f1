"""Every test of a kernel runs once for each instruction set that this CPU has."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from slotdeck.engine.kernels.library import Kernels, _load, instruction_sets
from tests.kernels.library import library_under_test


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "kernels" in metafunc.fixturenames:
        path = library_under_test()
        without = [pytest.param(None, marks=pytest.mark.skip(reason="no C++ compiler"))]
        sets = instruction_sets(_load(path)) if path else without
        metafunc.parametrize("kernels", sets, indirect=True, scope="module")


@pytest.fixture(scope="module")
def kernels(request: pytest.FixtureRequest) -> Iterator[Kernels]:
    kernels = Kernels(2, request.param, library_under_test())
    yield kernels
    kernels.close()
