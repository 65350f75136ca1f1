"""What the Live page shows, at common terminal sizes."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

from slotdeck.console.cli.top import picture
from slotdeck.console.drawing.cells import plain
from slotdeck.console.pages.layout import Chrome
from slotdeck.console.pages.live import LiveState, compose_live
from slotdeck.console.sections.events import event_lines
from slotdeck.console.sections.listing import ListState
from slotdeck.console.session.prompts import Status
from slotdeck.console.sources.base import Disconnected, EngineEnd
from slotdeck.console.state.store import Store, View
from slotdeck.engine.telemetry.frame import CounterInfo, Frame
from tests.support import frames
from tests.support.console_app import GONE


def view_of(frame: Frame) -> View:
    store = Store()
    store.apply(frame)
    return store.view


def lines_of(frame: Frame, cells: int = 80, rows: int = 24, **chrome: object) -> list[str]:
    state = chrome.pop("state", LiveState())
    return [plain(line) for line in compose_live(view_of(frame), Chrome(**chrome), cells, rows, state)]  # type: ignore


def test_run_01_lowered_slots_show_as_draining() -> None:
    assert any("slots 4/2 draining" in line for line in lines_of(frames.draining()))


def test_a_total_that_no_longer_fits_its_column_is_not_cut() -> None:
    counters = CounterInfo(finished=1355, rejected=277, invalid=92, cancelled=49, preemptions=79)
    for cells in (80, 90, 120):
        line = next(line for line in lines_of(frames.frame(counters=counters), cells) if line.startswith(" total"))
        assert "cancelled 49" in line
        assert line.rstrip().endswith("preempted 79")


def test_ctx_02_context_per_request_and_pool_total_are_two_numbers() -> None:
    lines = lines_of(frames.steady())
    assert any("ctx 2048/request" in line for line in lines)
    assert any("of 8192" in line and "KV pool" in line for line in lines)


def test_kv_03_the_row_of_a_preempted_request_says_recompute_how_often_and_how_long() -> None:
    row = next(line for line in lines_of(frames.preempting()) if "! preempted" in line)
    assert "recompute x2" in row
    assert "4.20s" in row


def test_kv_09_live_cached_and_free_are_three_parts_and_the_percentage_is_live() -> None:
    frame = frames.steady()
    pool = frame.pool.model_copy(update={"live": 2048, "cached": 4096, "free": 2048})
    line = next(x for x in lines_of(frame.model_copy(update={"pool": pool})) if "KV pool" in x)
    assert "live 2.0k  25%" in line
    assert "cached 4.1k" in line
    assert "free 2.0k" in line
    assert line.count("▒") == pytest.approx(2 * line.count("█"), abs=1)


def test_con_14_running_and_waiting_have_their_own_limits() -> None:
    assert any("slots 4/4" in line and "queue 2/16" in line for line in lines_of(frames.nearly_full()))


def test_con_16_a_fault_is_reported_with_its_reason() -> None:
    fault = frames.steady().model_copy(update={"health": "fault", "health_reason": "three steps in a row failed"})
    assert any("ENGINE FAULT  three steps in a row failed" in line for line in lines_of(fault))


def test_con_20_wait_age_estimate_and_who_gave_up() -> None:
    frame = frames.nearly_full()
    counters = frame.counters.model_copy(update={"gave_up_waiting": 3})
    lines = lines_of(frame.model_copy(update={"counters": counters}))
    assert any("tablet" in line and "waited 3.10s" in line and "about 2s" in line for line in lines)
    assert any("gave up 3" in line for line in lines)


def test_waiting_beside_a_free_slot_is_reported_as_waiting_for_the_pool() -> None:
    frame = frames.frame(waiting=frames.WAITING)
    assert not any("for KV room" in line for line in lines_of(frame))
    tight = frame.model_copy(update={"pool": frame.pool.model_copy(update={"live": 8000, "free": 192})})
    assert any("waiting 2 for KV room" in line and "TTFT of the last 20" in line for line in lines_of(tight))


@pytest.mark.parametrize(("mode", "text"), [("static", "for the batch to end"), ("serial", "for the one running")])
def test_who_waits_for_the_way_of_batching_is_told_so(mode: str, text: str) -> None:
    frame = frames.frame(waiting=frames.WAITING, limits=frames.limits_of(mode=mode))
    assert any(f"waiting 2 {text}" in line for line in lines_of(frame))


def test_sec_01_an_insecure_bind_is_a_standing_warning() -> None:
    frame = frames.steady()
    insecure = frame.model_copy(update={"engine": frame.engine.model_copy(update={"insecure": True})})
    assert any("without API keys" in line for line in lines_of(insecure))


def test_an_unused_engine_says_how_to_begin() -> None:
    text = "\n".join(lines_of(frames.empty(), can_load=True))
    assert "http://127.0.0.1:8000/v1" in text
    assert "press L" in text
    assert "curl" in text
    assert "…" not in text


def test_the_first_request_can_be_pasted_where_keys_are_required() -> None:
    frame = frames.empty()
    engine = frame.engine.model_copy(update={"url": "http://192.168.178.20:8000", "keys_required": True})
    lines = lines_of(frame.model_copy(update={"engine": engine}), can_load=True)
    start = next(i for i, line in enumerate(lines) if "curl " in line)
    words = shlex.split("\n".join(line.strip() for line in lines[start : start + 3]).replace("\\\n", ""))
    assert words[:2] == ["curl", "http://192.168.178.20:8000/v1/chat/completions"]
    assert words[words.index("-H") + 1] == "Authorization: Bearer KEY"
    body = json.loads(words[words.index("-d") + 1])
    assert (body["temperature"], body["max_tokens"]) == (0, 64)
    assert body["messages"][0]["role"] == "user"
    assert "Bearer" not in "\n".join(lines_of(frames.empty()))


def test_invalid_requests_are_shown_once_there_are_any() -> None:
    frame = frames.steady()
    assert not any("invalid" in line for line in lines_of(frame))
    counters = frame.counters.model_copy(update={"invalid": 12})
    assert any("invalid 12" in line and "rejected 0" in line and "preempted 0" in line
               for line in lines_of(frame.model_copy(update={"counters": counters})))  # fmt: skip


def test_a_narrow_event_log_wraps_instead_of_cutting_numbers() -> None:
    view = view_of(
        frames.frame(
            events=(
                frames.event(
                    3, "preempted", "kitchen (slot 11) preempted, the KV pool is full: 1840 tokens thrown away"
                ),
                frames.event(2, "finished", "kitchen finished (length): 1244 tokens in 119.2 s"),
            )
        )
    )
    rows = [plain(line) for line in event_lines(view.events, 39, 12)]
    text = " ".join(" ".join(rows).split())
    assert "KV pool is full: 1840 tokens thrown away" in text
    assert "1244 tokens in 119.2 s" in text
    assert "…" not in text


def test_no_row_of_the_event_log_stays_empty_while_there_are_more_events() -> None:
    long = frames.event(3, "preempted", "kitchen (slot 11) preempted, the KV pool is full: 1840 tokens thrown away")
    view = view_of(frames.frame(events=(*[long] * 5, frames.event(2, "finished", "kitchen finished"))))
    for rows in range(2, 12):
        lines = [plain(line) for line in event_lines(view.events, 39, rows)]
        assert len(lines) == rows
        assert all(line.strip() for line in lines)


@pytest.mark.parametrize("how", ["signal 9, out of memory?", "exit code 70, a step hung", ""])
def test_the_end_of_the_engine_is_reported_in_one_line_of_80(how: str) -> None:
    store = Store()
    store.apply(frames.steady())
    store.apply(Disconnected("the engine has ended", end=EngineEnd(how)))
    lines = [plain(line) for line in compose_live(store.view, Chrome(), 80, 24)]
    [line] = [line for line in lines if "ENGINE ENDED" in line]
    assert how in line
    assert line.rstrip().endswith("q leaves; slotdeck starts a new one")
    assert store.view.events[-1].text == "the engine has ended"
    store.apply(frames.steady())
    assert not any("ENGINE ENDED" in plain(line) for line in compose_live(store.view, Chrome(), 80, 24))


def test_the_reason_of_a_lost_connection_comes_before_what_may_be_cut() -> None:
    store = Store()
    store.apply(frames.steady())
    store.apply(Disconnected("no engine answers at /home/somebody/with/a/long/path/runtime/slotdeck/engine.sock"))
    lines = [plain(line) for line in compose_live(store.view, Chrome(disconnected_for=65), 80, 24)]
    assert any("DISCONNECTED 01:05  reconnecting; no engine answers at /home" in line for line in lines)


def test_more_slots_than_rows_scroll_and_say_what_is_hidden() -> None:
    frame = frames.busy(1)
    lines = lines_of(frame)
    assert any("↑ 0 above  ↓ 10 below, 10 of them busy" in line for line in lines)
    last = lines_of(frame, state=LiveState(ListState(offset=999)))
    assert any(line.startswith("  19 ") for line in last)
    assert any("↑ 10 above  ↓ 0 below" in line for line in last)


@pytest.mark.parametrize(("cells", "rows"), [(80, 24), (60, 20), (40, 15)])
def test_tui_06_essential_keys_fit_narrow_terminals(cells: int, rows: int) -> None:
    lines = lines_of(frames.nearly_full(), cells, rows)
    assert "? help" in lines[-1]
    assert "q quit" in lines[-1]
    assert "s slots" in lines[-1]
    editing = lines_of(frames.nearly_full(), cells, rows, editing=True)
    assert "enter apply" in editing[-1]
    assert "esc drop" in editing[-1]


def test_wide_terminals_put_latency_and_events_beside_the_slots() -> None:
    lines = lines_of(frames.preempting(), 120, 36)
    slot = next(line for line in lines if " 0  ● decode" in line)
    assert "│" in slot
    assert any(line.startswith(" events") for line in lines)  # under the slots, where there is more room
    assert any("ITL" in line and "1.43s" in line and "│" in line for line in lines)


def test_a_nearly_full_pool_is_reported_in_words() -> None:
    assert any("94%" in line and line.rstrip().endswith("high") for line in lines_of(frames.nearly_full()))


def test_disconnection_keeps_the_last_view_and_says_why() -> None:
    store = Store()
    store.apply(frames.steady())
    store.apply(GONE)
    lines = [plain(line) for line in compose_live(store.view, Chrome(disconnected_for=65), 120, 36)]
    assert any("DISCONNECTED 01:05  reconnecting; no engine answers" in line for line in lines)
    assert any("● decode" in line for line in lines)


def test_pause_is_clear_and_has_an_age() -> None:
    assert any("PAUSED 00:12" in line for line in lines_of(frames.steady(), paused_for=12))


def test_a_long_sentence_gets_a_second_row_before_it_is_cut() -> None:
    text = "new requests only; 4 x 4096 = 16.4k > pool 8.2k, preemption possible for those who stream"
    lines = lines_of(frames.nearly_full(), status=Status("context 2048→4096:", text, "warn"))
    assert "new requests only" in lines[-3]
    assert lines[-2].rstrip().endswith("stream")


@pytest.mark.parametrize(
    ("outlook", "budget", "expected", "sentence"),
    [
        ("kept", 48, 0.148, ""),
        ("floor", 16, 0.175, "! ITL target 150ms not kept beside prompts: floor of 16 tokens, 175ms a step"),
        ("unreachable", 16, 0.31, "! ITL target 150ms unreachable: decoding alone takes 310ms"),
    ],
)
def test_a_missed_itl_target_is_reported_with_its_reason(
    outlook: Any, budget: int, expected: float, sentence: str
) -> None:
    limits = frames.limits_of(itl_target=150, budget_in_force=budget, itl_outlook=outlook, itl_expected=expected)
    frame = frames.steady().model_copy(update={"limits": limits})
    lines = [line.strip() for line in lines_of(frame)]
    assert any(f"budget {budget}/64" in line for line in lines)
    assert (sentence in lines) if sentence else not any("ITL target" in line for line in lines)
    assert any("ITL target" in line for line in picture(frame, 80)) is bool(sentence)
