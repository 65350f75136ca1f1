"""Where the time of steps goes: sums of each part, and what came between two readings."""

from __future__ import annotations

import pytest

from slotdeck.engine.telemetry import step_profile
from slotdeck.engine.telemetry.step_profile import StepProfiler


def test_sums_and_what_came_between_two_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_profile.time, "thread_time", lambda: 3.0)
    monkeypatch.setattr(step_profile.time, "process_time", lambda: 11.0)
    profiler = StepProfiler()
    profiler.add(0.5, 4, {"plan": 0.1, "forward": 0.4})
    first = profiler.profile({"attention": 0.2})
    assert (first.steps, first.tokens, first.wall) == (1, 4, 0.5)
    assert first.parts == {"plan": 0.1, "forward": 0.4, "attention": 0.2}
    assert (first.server_cpu, first.process_cpu) == (3.0, 11.0)
    monkeypatch.setattr(step_profile.time, "thread_time", lambda: 4.5)
    monkeypatch.setattr(step_profile.time, "process_time", lambda: 13.0)
    profiler.add(0.7, 3, {"plan": 0.2, "commit": 0.3})
    second = profiler.profile({"attention": 0.9})
    between = second.since(first)
    assert (between.steps, between.tokens, between.wall) == (1, 3, pytest.approx(0.7))
    assert between.parts == pytest.approx({"plan": 0.2, "forward": 0.0, "attention": 0.7, "commit": 0.3})
    assert (between.server_cpu, between.process_cpu) == (1.5, 2.0)
