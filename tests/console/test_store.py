"""Frames become a view; gaps, restarts and lost connections are told apart."""

from __future__ import annotations

from slotdeck.console.sources.base import Past
from slotdeck.console.state.store import MAX_EVENTS, Store
from slotdeck.engine.telemetry.frame import Frame
from tests.support import frames
from tests.support.console_app import GONE


def test_a_frame_replaces_the_view_and_a_gap_needs_no_repair() -> None:
    store = Store()
    store.apply(frames.busy(1))
    store.apply(frames.busy(9))
    assert store.view.frame == frames.busy(9)
    assert store.version == 2


def test_a_new_boot_id_is_a_restart_and_clears_recent_increases() -> None:
    store = Store()
    store.apply(frames.preempting())
    store.apply(frames.empty().model_copy(update={"boot_id": "boot-2"}))
    assert any(entry.text == "the engine was restarted" for entry in store.view.events)
    assert store.view.recently_increased == frozenset()


def test_notes_of_the_engine_are_logged_once() -> None:
    store = Store()
    store.apply(frames.steady())
    store.apply(frames.steady().model_copy(update={"events": (), "sequence": 2}))
    assert [entry.kind for entry in store.view.events].count("note") == 1


def test_the_log_is_bounded() -> None:
    store = Store()
    for step in range(3):
        many = tuple(frames.event(i, "admitted", f"event {step} {i}") for i in range(MAX_EVENTS))
        store.apply(frames.steady().model_copy(update={"events": many}))
    assert len(store.view.events) == MAX_EVENTS


def test_events_of_past_frames_are_logged_once_also_those_newer_than_the_newest_frame() -> None:
    """The past is fetched after the first frame, so it may hold what the next frames bring too."""

    def second(at: int) -> Frame:
        event = frames.event(-at, "finished", f"event of second {at}")
        return frames.frame(sequence=at, time=frames.START + at, events=(event,))

    store = Store()
    store.apply(second(1))
    store.apply(Past(tuple(second(at) for at in range(4))))
    store.apply(second(2))
    store.apply(second(3))
    logged = [entry.text for entry in store.view.events if entry.kind == "finished"]
    assert logged == [f"event of second {at}" for at in range(4)]


def test_a_counter_that_rose_has_recently_increased_for_exactly_a_minute() -> None:
    store = Store()
    first = frames.steady()
    rose = first.counters.model_copy(update={"rejected": 2})
    store.apply(first)
    store.apply(first.model_copy(update={"counters": rose, "time": first.time + 5}))
    assert store.view.recently_increased == {"rejected"}
    for second in range(6, 61):
        store.apply(first.model_copy(update={"counters": rose, "time": first.time + second}))
    assert store.view.recently_increased == {"rejected"}
    for second in range(61, 80):
        store.apply(first.model_copy(update={"counters": rose, "time": first.time + second}))
    assert store.view.recently_increased == frozenset()


def test_kv_swap_rate_comes_from_the_counter() -> None:
    store = Store()
    first = frames.steady()
    for second in range(5):
        counters = first.counters.model_copy(update={"kv_swap_bytes": second * 1000})
        store.apply(first.model_copy(update={"counters": counters, "time": first.time + second}))
    assert store.view.kv_swap_rate == 1000
    unknown = first.counters.model_copy(update={"kv_swap_bytes": None})
    store.apply(first.model_copy(update={"counters": unknown, "time": first.time + 9}))
    assert store.view.kv_swap_rate is None


def test_disconnection_keeps_the_frame_and_its_first_instant() -> None:
    now = [10.0]
    store = Store(lambda: now[0])
    store.apply(frames.steady())
    store.apply(GONE)
    now[0] = 20.0
    store.apply(GONE)
    assert store.view.frame is not None
    assert store.view.disconnected_at == 10.0
    assert store.view.in_flight == 0
    store.apply(frames.steady())
    assert store.view.disconnected is None
