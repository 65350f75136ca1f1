"""The Request page: a recorded request, a waiting one, an ended one, and arbitrary data from a server."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slotdeck.console.drawing.cells import line_width, plain
from slotdeck.console.pages.layout import Chrome
from slotdeck.console.pages.request import compose_request
from slotdeck.console.sections.request_timeline import phases
from slotdeck.console.state.store import Store
from slotdeck.engine.telemetry.frame import LimitInfo, SlotInfo
from slotdeck.engine.telemetry.requests.detail import (
    CAUSE_LETTERS,
    ChangeInfo,
    GapInfo,
    PrefillChunk,
    RequestDetail,
    StallInfo,
)
from tests.support import frames
from tests.support.console_app import console, screen_text, seen, until
from tests.support.hostile import labels
from tests.support.request_detail import RECORDED

SIZES = ((80, 24), (120, 36), (180, 50))


def lines_of(detail: RequestDetail | None, cells: int = 80, rows: int = 24, problem: str = "") -> list[str]:
    store = Store()
    store.apply(frames.steady())
    lines = compose_request(detail, problem, store.view, Chrome(page="request"), width=cells, height=rows)
    assert len(lines) == rows
    assert all(line_width(line) == cells for line in lines)
    return [plain(line) for line in lines]


def test_the_sentence_the_parts_of_its_time_and_the_longest_gap_are_on_one_small_screen() -> None:
    text = "\n".join(lines_of(RECORDED))
    assert "Waited 10.7 s in the queue" in text
    assert "TTFT 11.3s = prep 0.00s + queue 10.7s + prefill 0.56s" in text
    assert "░ queue 10.7s ▸ prefill 0.56s ━ decode 2.34s ! preempted 1.79s ▸ again 0.53s" in text
    assert "gaps n=47" in text
    assert "2.45s at 14.5s  a preemption" in text


def test_settings_are_those_at_admission_with_later_changes() -> None:
    """Not those of now, which may be others; what was turned while it still waited is part of them."""
    detail = RECORDED.model_copy(
        update={
            "settings": LimitInfo(
                revision=2, slots=7, context=640, budget=48, mode="static", kv_tokens=4480, preemption="recompute",
                prefix_cache=True, itl_target=0,
            ),
            "changes": (
                ChangeInfo(at=2.0, text="slots 4 → 7 by console"),
                ChangeInfo(at=12.5, text="budget 48 → 64 by console"),
                ChangeInfo(at=13.0, text="slots 7 → 8 by console"),
            ),
        }
    )  # fmt: skip
    line = next(line for line in lines_of(detail, 120, 36) if line.startswith(" admitted with"))
    assert "admitted with  slots 7  ctx 640  budget 48  static" in line
    assert "at 12.5s: budget 48 → 64 by console  and 1 more" in line


def test_the_phases_add_up_to_the_age() -> None:
    parts = phases(RECORDED)
    assert parts[0][1] == 0
    assert all(before[2] == after[1] for before, after in pairwise(parts))
    assert parts[-1][2] == pytest.approx(RECORDED.age)
    assert [name for name, _, _ in parts] == [
        "preprocessing", "queue", "prefill", "decode", "preempted", "again", "decode",
    ]  # fmt: skip


def test_wide_terminals_list_the_chunks_beside_the_gaps() -> None:
    lines = lines_of(RECORDED, 120, 36)
    assert any("gaps n=47" in line and "prefill at" in line for line in lines)
    assert sum("again" in line for line in lines) >= 4


async def test_enter_opens_the_selected_request_and_esc_comes_back() -> None:
    app, source = console(frames.steady())
    source.details["r0"] = RECORDED.model_copy(update={"request_id": "r0", "state": "decode", "user": "laptop"})
    async with app.run_test(size=(80, 24)) as pilot:
        await seen(pilot, "slots 3/4")
        await pilot.press("enter")
        await seen(pilot, "no request is selected")
        await pilot.press("j", "enter")
        await seen(pilot, "● decode  slot 1  laptop  r0")
        source.details["r0"] = RECORDED.model_copy(update={"request_id": "r0", "user": "laptop"})
        await seen(pilot, "✓ finished")
        await pilot.press("K")
        await seen(pilot, "has ended already")
        await pilot.press("j")
        await seen(pilot, "no such request runs, waits or ended lately")
        await pilot.press("escape")
        await seen(pilot, "KV pool")


async def test_enter_on_a_free_slot_opens_the_request_that_used_it_last() -> None:
    app, source = console(frames.steady())
    source.details["r0"] = RECORDED.model_copy(update={"request_id": "r0", "user": "laptop"})
    async with app.run_test(size=(80, 24)) as pilot:
        await seen(pilot, "slots 3/4")
        slots = (SlotInfo(slot=0), *frames.steady_slots()[1:])
        for second in (1, 2):
            source.give(frames.frame(slots=slots, time=frames.START + second))
        await seen(pilot, "0  · idle")
        await pilot.press("j", "enter")
        await seen(pilot, "✓ finished (stop)  slot 1  laptop  r0")
        await pilot.press("escape", "j", "j", "j", "enter")
        await seen(pilot, "nobody used this slot")
        await pilot.press("K")
        await seen(pilot, "this slot is free")


async def test_cancel_on_the_request_screen_asks_too() -> None:
    app, source = console(frames.nearly_full())
    source.details["w1"] = RequestDetail(request_id="w1", user="tablet", state="waiting", position=1, why="Waiting.")
    async with app.run_test(size=(80, 24)) as pilot:
        await seen(pilot, "slots 4/4")
        await pilot.press("k", "k", "enter")
        await seen(pilot, "· waiting  tablet")
        await pilot.press("K", "y")
        await until(pilot, lambda: source.cancelled == ["w1"])
        await pilot.press("1")
        await until(pilot, lambda: "KV pool" in screen_text(app))


number = st.one_of(st.none(), st.floats(0, 1e9))
small = st.one_of(st.none(), st.integers(0, 10**6))


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(st.data())
def test_whatever_comes_every_line_is_exact(data: st.DataObject) -> None:
    text = data.draw(labels)
    gaps = data.draw(st.lists(st.floats(0, 1e4), max_size=300))
    detail = RequestDetail(
        request_id=text, user=data.draw(labels), why=text, failure=text, finish_reason=text,
        state=data.draw(st.sampled_from(
            ["waiting", "prefill", "decode", "held", "preempted", "swapped", "finished", "cancelled", "failed"])),
        slot=data.draw(small), arrived=data.draw(st.one_of(st.none(), st.floats(0, 1e10))), age=data.draw(number),
        prompt_tokens=data.draw(small), cached_tokens=data.draw(small), output_tokens=data.draw(small),
        kv_tokens=data.draw(small), intake=data.draw(number), queue_wait=data.draw(number),
        prefill=data.draw(number), ttft=data.draw(number), preemptions=data.draw(small), stalled=data.draw(number),
        chunks=tuple(
            PrefillChunk(at=data.draw(st.floats(0, 1e4)), seconds=1.0, steps=data.draw(st.integers(1, 9)), tokens=64,
                      others=3, streams=2, again=data.draw(st.booleans()))
            for _ in range(data.draw(st.integers(0, 5)))),
        gaps=tuple(gaps), gap_causes=data.draw(st.text("x.!p", max_size=300)),
        long_gaps=tuple(GapInfo(at=1, seconds=2, cause=cause, text=text) for cause in CAUSE_LETTERS),
        stalls=tuple(
            StallInfo(at=data.draw(st.floats(0, 1e4)), seconds=data.draw(number), tokens=data.draw(small))
            for _ in range(data.draw(st.integers(0, 3)))),
    )  # fmt: skip
    cells, rows = data.draw(st.sampled_from([(80, 24), (60, 20), (120, 36), (180, 50), (20, 6), (1, 1)]))
    for line in lines_of(detail, cells, rows, problem=data.draw(st.sampled_from(["", "lost"]))):
        assert "\x1b" not in line
