"""The last ten minutes in memory: what is kept of a frame, and how many."""

from __future__ import annotations

import asyncio

import pytest

from slotdeck.engine.telemetry import recent_frames
from slotdeck.engine.telemetry.frame import Bounds, EngineInfo, Frame, FrameEvent
from slotdeck.engine.telemetry.recent_frames import RecentFrames
from tests.support import frames as made


def lines(recent: RecentFrames) -> list[Frame]:
    return [Frame.model_validate_json(line) for line in recent.lines().splitlines()]


def test_a_frame_is_kept_without_what_only_the_newest_one_says() -> None:
    event = FrameEvent(time=1.0, kind="note", text="hello")
    whole = made.steady()
    limits = whole.limits.model_copy(update={"bounds": {"slots": Bounds(least=1, most=9)}})
    whole = whole.model_copy(update={"events": (event,), "limits": limits})
    recent = RecentFrames()
    assert recent.lines() == b""
    recent.add(whole)
    (kept,) = lines(recent)
    busy = [slot for slot in whole.slots if slot.state != "idle"]
    assert busy
    assert [(s.slot, s.state, s.request_id, s.user) for s in kept.slots] == [
        (s.slot, s.state, s.request_id, s.user) for s in busy
    ]
    assert all(slot.gaps == () and slot.output_tokens is None for slot in kept.slots)
    assert kept.engine == EngineInfo()
    assert kept.limits == whole.limits.model_copy(update={"bounds": {}})
    assert (kept.waiting, kept.recent_ttft) == ((), ())
    assert kept.events == (event,)
    assert (kept.counters, kept.minute, kept.pool, kept.time) == (
        whole.counters, whole.minute, whole.pool, whole.time,
    )  # fmt: skip


def test_the_oldest_frames_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_frames, "FRAMES_KEPT", 3)
    recent = RecentFrames()
    for second in range(5):
        recent.add(made.frame(sequence=second))
    assert [frame.sequence for frame in lines(recent)] == [2, 3, 4]


async def test_it_takes_a_frame_each_time_with_the_events_since_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_frames, "FRAME_SECONDS", 0.001)
    stopping, asked = asyncio.Event(), []

    class Engine:
        def frame(self, sequence: int, event_cursor: int) -> tuple[Frame, int]:
            asked.append((sequence, event_cursor))
            if len(asked) == 3:
                stopping.set()
            return made.frame(sequence=sequence), event_cursor + 10

    recent = RecentFrames()
    await recent.follow(Engine(), stopping)
    assert asked == [(1, 0), (2, 10), (3, 20)]
    assert [frame.sequence for frame in lines(recent)] == [1, 2, 3]
