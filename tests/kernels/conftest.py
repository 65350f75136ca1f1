"""Every test of a kernel runs once for each instruction set that this CPU has."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from slotdeck.engine.kernels.build import BuildError, library_path
from slotdeck.engine.kernels.library import Kernels, _load, instruction_sets

PATH = "SLOTDECK_TEST_KERNELS"
"""Names a library to test in place of the usual one (the sanitizers' build)."""
EXAMPLES = 20 if PATH in os.environ else 60
"""Of a property of a product; the sanitizers watch every access of each, many times as slowly."""


def library_under_test() -> Path | None:
    """The library under test; None without a compiler."""
    try:
        return Path(os.environ[PATH]) if PATH in os.environ else library_path()
    except BuildError:
        return None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "kernels" in metafunc.fixturenames:
        path = library_under_test()
        sets = instruction_sets(_load(path)) if path else []
        metafunc.parametrize("kernels", sets, indirect=True, scope="module")


@pytest.fixture(scope="module")
def kernels(request: pytest.FixtureRequest) -> Iterator[Kernels]:
    kernels = Kernels(2, request.param, library_under_test())
    yield kernels
    kernels.close()
