"""Lines and numbers: exact widths for any input, correct formats."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from slotdeck.console.drawing import formats
from slotdeck.console.drawing.cells import clean, cut, exact, left, line_width, plain, right, wrap
from slotdeck.console.drawing.glyphs import gap_bars, progress, shares, sparkline, to_ascii
from slotdeck.console.pages.layout import Chrome
from slotdeck.console.pages.live import ZOOMS, LiveState, compose_live
from slotdeck.console.sections.listing import SORTS, Cursor, ListState
from slotdeck.console.session.prompts import Status
from slotdeck.console.state.store import Store
from slotdeck.engine.telemetry.frame import Frame, SlotInfo, WaitingInfo
from tests.support import frames
from tests.support.hostile import labels


@given(labels, st.integers(0, 30))
@example("猫猫", 3)
def test_cut_and_pad_are_exact(label: str, cells: int) -> None:
    text = clean(label)
    assert cell_len(cut(text, cells)) <= cells
    assert cell_len(left(text, cells)) == cell_len(right(text, cells)) == cells
    assert line_width(exact([(text, "text"), (text, "label")], cells)) == cells
    assert not any(ord(c) < 32 or 0x7F <= ord(c) < 0xA0 for c in text)
    assert len(to_ascii(left(text, cells))) == cells


def test_other_scripts_stay_readable_and_tricks_are_removed() -> None:
    assert clean("三匹の猫") == "三匹の猫"
    assert clean("Zoë’s Büro") == "Zoë’s Büro"
    assert clean("\x1b[31mred") == "?[31mred"
    assert clean("a\u202eb") == "a?b"
    assert clean("\U0001f469\u200d\U0001f467 x") == "? x"
    assert clean("[b]bold[/b]") == "[b]bold[/b]"


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(st.data())
def test_every_line_of_the_screen_is_exact(data: st.DataObject) -> None:
    """Hostile labels, reasons and events; missing, huge and odd numbers; every size of terminal."""
    number = st.one_of(st.none(), st.floats(0, 1e12), st.just(0.0))
    whole = st.one_of(st.none(), st.integers(0, 10**13))

    def slot(i: int) -> SlotInfo:
        return SlotInfo(
            slot=i,
            state=data.draw(st.sampled_from(["idle", "prefill", "decode", "held", "preempted", "swapped"])),
            user=data.draw(labels), prompt_tokens=data.draw(whole), computed_tokens=data.draw(whole),
            output_tokens=data.draw(whole), ttft=data.draw(number), queue_wait=data.draw(number),
            prefill=data.draw(number), itl_p95=data.draw(number), preemptions=data.draw(whole),
            stalled=data.draw(number), gaps=tuple(data.draw(st.lists(st.floats(0, 1e6), max_size=24))),
        )  # fmt: skip

    base = frames.frame()
    text = data.draw(labels)
    changed: dict[str, Any] = {
        "slots": tuple(slot(i) for i in range(data.draw(st.integers(0, 12)))),
        "waiting": tuple(
            WaitingInfo(request_id="w", user=data.draw(labels), waited=data.draw(number), estimate=data.draw(number))
            for _ in range(data.draw(st.integers(0, 6)))
        ),
        "waiting_count": data.draw(whole),
        "health": data.draw(st.sampled_from(["ok", "starting", "draining", "fault"])),
        "health_reason": text,
        "engine": base.engine.model_copy(update={"model": text, "device": text, "url": text}),
        "generated_per_second": data.draw(number),
        "recent_ttft": tuple(data.draw(st.lists(st.floats(0, 1e6), max_size=20))),
        "events": (frames.event(1, "failed", text),),
    }
    store = Store()
    store.apply(base.model_copy(update=changed))
    cells, rows = data.draw(st.sampled_from([(80, 24), (60, 20), (40, 15), (120, 36), (180, 50), (20, 6), (1, 1)]))
    chrome = Chrome(
        status=Status("slots 4→8:", text, "warn"), users=data.draw(st.sampled_from([None, 5])),
        paused_for=data.draw(st.sampled_from([None, 12.0])), can_load=True,
    )  # fmt: skip
    cursor = data.draw(st.sampled_from([None, Cursor(slot=3), Cursor(request_id="w")]))
    choice = ListState(
        cursor, data.draw(st.integers(0, 50)), data.draw(labels)[:64], data.draw(st.sampled_from([*SORTS]))
    )
    state = LiveState(choice, data.draw(st.sampled_from(ZOOMS)))
    lines = compose_live(store.view, chrome, cells, rows, state)
    assert len(lines) == rows
    for line in lines:
        assert line_width(line) == cells
        assert cell_len(plain(line)) == cells
        assert "\x1b" not in plain(line)


def test_frames_without_any_number_show_dashes_never_zero() -> None:
    zero = Frame.model_validate(
        {"boot_id": "b", "sequence": 1, "time": 0, "engine": {}, "limits": {}, "pool": {}, "counters": {},
         "minute": {"seconds": 60}, "ten_minutes": {"seconds": 600}, "host": {}}
    )  # fmt: skip
    store = Store()
    store.apply(zero)
    lines = [plain(line) for line in compose_live(store.view, Chrome(), 80, 24)]
    for label in ("slots –/–", "queue –/–", "ctx –", "gen –", "CPU –", "RAM –", "OS swap in – out –", "rejected –"):
        assert any(label in line for line in lines), label
    assert not any(" 0" in line for line in lines[1:7])


@pytest.mark.parametrize(
    ("form", "value", "text"),
    [
        (formats.count, 999, "999"), (formats.count, 999.6, "1.0k"), (formats.count, 2149, "2.1k"),
        (formats.count, 61_200, "61k"), (formats.count, 999_700, "1.0M"), (formats.count, None, "–"),
        (formats.seconds, 0, "0.00s"), (formats.seconds, 0.424, "0.42s"), (formats.seconds, 12.34, "12.3s"),
        (formats.seconds, 600, "600s"), (formats.seconds, 1200, "20m"), (formats.seconds, None, "–"),
        (formats.gap, 0.0882, "88ms"), (formats.gap, 0.0042, "4.2ms"), (formats.gap, 1.43, "1.43s"),
        (formats.clock, 133, "02:13"), (formats.clock, 7384, "2:03:04"), (formats.clock, 356_400, "4d 3h"),
        (formats.byte_count, 0, "0"), (formats.byte_count, 1_234_567, "1.2 MB"), (formats.tokens, 16_384, "16.4k"),
        (formats.rate, 0, "0"), (formats.rate, 3.44, "3.4"), (formats.rate, 61.3, "61"),
        (formats.about, 0.4, "under 1s"), (formats.about, 3.2, "about 3s"),
    ],
)  # fmt: skip
def test_numbers(form: Any, value: float | None, text: str) -> None:
    assert form(value) == text


@given(st.lists(st.integers(0, 10**9), min_size=3, max_size=3), st.integers(0, 200))
def test_bar_parts_fill_the_bar(parts: list[int], cells: int) -> None:
    result = shares(parts, cells)
    assert sum(result) == (cells if sum(parts) else 0)
    assert all(share >= 0 for share in result)
    if cells >= 3:
        assert all(share > 0 for share, part in zip(result, parts, strict=True) if part > 0)


def test_bars_and_sparklines() -> None:
    assert sparkline([0, 1, 2], 10) == "▁▄█"
    assert sparkline([], 10) == ""
    assert progress(33, 100, 10) == ("███", "░░░░░░░")
    assert gap_bars([0.08, 0.08, 0.64, 0.08], 0.08, 10) == "▂▂▅▂"
    assert gap_bars([9, 9, 9], None, 2) == "▂▂"


def test_wrapping_keeps_words_and_cuts_only_the_last_row() -> None:
    assert wrap("one two three four", 9, 2) == ["one two", "three fo…"]
    assert wrap("short", 9, 2) == ["short"]
