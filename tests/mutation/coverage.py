"""Which test runs which line of a folder, and how long each takes, so that a mutant gets only the tests it needs."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

IMPORT = ""
"""Stands for what runs while modules are imported."""


class LineTracer:
    """A plugin for pytest. ``files`` are the resolved paths whose lines are noted."""

    def __init__(self, files: dict[str, str]) -> None:
        self._files = files
        self._names: dict[str, str | None] = {}
        self._test = IMPORT
        self.lines: defaultdict[tuple[str, int], set[str]] = defaultdict(set)
        self.seconds: dict[str, float] = {}

    def start(self) -> None:
        threading.settrace(self._trace)
        sys.settrace(self._trace)

    def stop(self) -> None:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]

    def _trace(self, frame: FrameType, _event: str, _argument: Any) -> Any:
        path = frame.f_code.co_filename
        if path not in self._names:
            self._names[path] = self._files.get(str(Path(path).resolve()))
        name = self._names[path]
        if name is None:
            return None
        self.lines[name, frame.f_lineno].add(self._test)

        def note(frame: FrameType, event: str, _argument: Any) -> Any:
            if event == "line":
                self.lines[name, frame.f_lineno].add(self._test)
            return note

        return note

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._test, began = item.nodeid, time.perf_counter()
        self.start()  # a test may have taken the tracer away
        try:
            return (yield)
        finally:
            self.seconds[item.nodeid] = time.perf_counter() - began
            self._test = IMPORT

    def save(self, path: Path) -> None:
        lines = [[name, line, sorted(tests)] for (name, line), tests in self.lines.items()]
        path.write_text(json.dumps({"lines": lines, "seconds": self.seconds}))


class Coverage:
    """What a :class:`LineTracer` saved."""

    def __init__(self, path: Path) -> None:
        saved = json.loads(path.read_text())
        self._lines: dict[tuple[str, int], set[str]] = {(name, line): set(ids) for name, line, ids in saved["lines"]}
        self._seconds: dict[str, float] = saved["seconds"]

    @property
    def seconds(self) -> float:
        """All tests together."""
        return sum(self._seconds.values())

    def tests_of(self, name: str, lines: range) -> list[str]:
        """The tests that run any of these lines, quick ones first; all of them for what runs at import."""
        found = set().union(*(self._lines.get((name, line), set()) for line in lines))
        chosen = found - {IMPORT} or (set(self._seconds) if found else set())
        return sorted(chosen, key=lambda test: self._seconds[test])
