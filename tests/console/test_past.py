"""A console that attaches late knows what an earlier one knows, and an hour of frames needs no more memory."""

from __future__ import annotations

import gc
import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotdeck.console.pages.layout import Chrome
from slotdeck.console.pages.live import compose_live
from slotdeck.console.sources.base import Past
from slotdeck.console.state.store import Store
from slotdeck.engine.telemetry.frame import Frame, SlotInfo, SlotState
from slotdeck.engine.telemetry.recent_frames import RecentFrames
from tests.support import frames
from tests.support.console_app import GONE

STATES: tuple[SlotState, ...] = ("idle", "prefill", "decode", "held", "preempted", "swapped")

seconds = st.tuples(
    st.lists(st.sampled_from(STATES), min_size=4, max_size=4),
    st.integers(0, 2),
    st.integers(1, 3),
    st.booleans(),
)
"""States of four slots, preemptions, revision of the settings and whether something happened."""


def story(drawn: list[tuple[list[SlotState], int, int, bool]]) -> list[Frame]:
    """Frames of a second each."""
    told, preempted = [], 0
    for at, (states, more, slots, happened) in enumerate(drawn):
        preempted += more
        told.append(
            frames.frame(
                sequence=at, time=frames.START + at, limits=frames.limits_of(slots=slots, revision=slots),
                slots=tuple(SlotInfo(slot=i, state=state, request_id=f"r{i}", user=frames.PEOPLE[i])
                            if state != "idle" else SlotInfo(slot=i) for i, state in enumerate(states)),
                counters=frames.frame().counters.model_copy(update={"preemptions": preempted}),
                events=(frames.event(-at, "finished", f"event of second {at}"),) if happened else (),
            )
        )  # fmt: skip
    return told


def kept(told: list[Frame]) -> Past:
    """What an engine keeps of these frames for a console that attaches late."""
    past = RecentFrames()
    for frame in told:
        past.add(frame)
    return Past(tuple(Frame.model_validate_json(line) for line in past.lines().splitlines()))


def known(store: Store) -> tuple[object, ...]:
    """All that does not hang on when the console came."""
    view = store.view
    logged = sorted((e.time, e.text) for e in view.events if e.kind == "finished")
    return view.frame, logged, view.series.changes, [replace(second, preempted=0) for second in view.series.samples]


@settings(max_examples=30)
@given(st.lists(seconds, min_size=2, max_size=24), st.data())
def test_frame_and_past_give_the_same_state_as_having_seen_everything(
    drawn: list[tuple[list[SlotState], int, int, bool]], data: st.DataObject
) -> None:
    """It attaches at some second, and may lose the connection for a while and find it again."""
    told = story(drawn)
    there, late = Store(), Store()
    for frame in told:
        there.apply(frame)
    come = data.draw(st.integers(0, len(told) - 1))
    late.apply(told[come])
    late.apply(kept(told[: come + 1]))
    lost = data.draw(st.integers(come + 1, len(told)))
    for frame in told[come + 1 : lost]:
        late.apply(frame)
    if lost < len(told):
        again = data.draw(st.integers(lost, len(told) - 1))
        late.apply(GONE)
        # What happened while it was away comes with the first frame, as the engine's stream gives it.
        missed = tuple(event for frame in told[lost : again + 1] for event in frame.events)
        late.apply(told[again].model_copy(update={"events": missed}))
        late.apply(kept(told[: again + 1]))
        for frame in told[again + 1 :]:
            late.apply(frame)
    seen, expected = known(late), known(there)
    assert seen[1:] == expected[1:]
    assert late.view.frame is not None
    assert late.view.frame.model_copy(update={"events": ()}) == told[-1].model_copy(update={"events": ()})


def test_the_past_of_another_engine_is_not_taken() -> None:
    store = Store()
    store.apply(frames.busy(100))
    store.apply(kept([frames.busy(step).model_copy(update={"boot_id": "other"}) for step in range(0, 80, 4)]))
    assert len(store.view.series.samples) == 1


def test_an_engine_keeps_ten_minutes_with_one_frame_a_second() -> None:
    past = RecentFrames()
    for step in range(0, 4 * 700, 4):
        past.add(frames.busy(step))
    assert past.lines().count(b"\n") == 600
    assert len(past.lines()) < 3 << 20
    assert b'"gaps"' not in past.lines()


@pytest.mark.slow
def test_an_hour_of_frames_leaves_no_more_objects_than_twenty_minutes() -> None:
    store = Store()

    def watch(begin: int, end: int) -> None:
        for second in range(begin, end):
            store.apply(frames.busy(4 * second, slots=8))
            if second % 20 == 0:
                compose_live(store.view, Chrome(), 180, 50)

    def objects() -> int:
        gc.collect()
        return sys.getallocatedblocks()

    watch(0, 1200)
    before = objects()
    watch(1200, 3600)
    assert objects() - before < before // 100
