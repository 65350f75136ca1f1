"""What holds for every test: shared fixtures, marks, time limits, and which code processes of tests import."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

pytest_plugins = ["tests.support.fixtures"]

TESTS = Path(__file__).parent
ROOT = TESTS.parent
FOLDERS = {
    "server": ("server",),
    "probe": ("server",),
    "demo": ("server",),
    "load": ("server",),
    "bench": ("server",),
    "model": ("slow",),
    "kernels": ("slow",),
}
"""Marks of every test in a folder. A single module has its own in ``pytestmark``."""
FIXTURES = {
    "deck": ("pty",),
    "socket": ("pty",),
    "server": ("server",),
    "snap_compare": ("snapshot",),
    "embedded_path": ("model",),
    "twin": ("slow",),
}
"""Marks of every test that uses a fixture, directly or through another fixture."""
SECONDS = {"slow": 240, "pty": 120, "server": 120, "model": 300}
"""Time limits of marked tests; pyproject.toml has that of the others. ``@pytest.mark.timeout`` on a test wins."""

QUICK = "not (slow or pty or server or snapshot or model)"

# Examples take as long as the machine lets them: a busy one must not fail a test.
settings.register_profile("slotdeck", deadline=None)
settings.load_profile("slotdeck")

# Processes that tests start must import this checkout, also where another one is installed.
os.environ["PYTHONPATH"] = os.pathsep.join((str(ROOT / ".src"), str(ROOT)))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="run only the fast tests, those without a mark")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("quick"):
        config.option.markexpr = QUICK


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import a folder of marked tests with ``--quick``: torch alone takes seconds."""
    marked = collection_path.parent == TESTS and collection_path.name in FOLDERS
    return True if marked and config.getoption("quick") else None


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all tests, and say how ``pytest -n 2 --dist loadgroup`` shares them between its processes.

    All tests of the embedded model run in one process, because two of them at once would compete for both cores. They
    come first, because together they take the longest. Every other module stays whole, so that its servers start once.
    """
    for item in items:
        folder = item.path.relative_to(TESTS).parts[0]
        names = {*FOLDERS.get(folder, ())}
        for fixture in getattr(item, "fixturenames", ()):
            names.update(FIXTURES.get(fixture, ()))
        for name in names:
            item.add_marker(name)
        if item.get_closest_marker("timeout") is None:
            limits = [limit for name, limit in SECONDS.items() if item.get_closest_marker(name)]
            if limits:
                item.add_marker(pytest.mark.timeout(max(limits)))
        group = "model" if item.get_closest_marker("model") else item.nodeid.partition("::")[0]
        item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=_order)


def _order(item: pytest.Item) -> int:
    if item.get_closest_marker("model"):
        return 0
    return 1 if item.get_closest_marker("slow") else 2
