"""The running app: keys, settings, pausing, themes, load. Driven by keys as an admin would."""

from __future__ import annotations

from pathlib import Path

from slotdeck.console.app import ConsoleApp
from slotdeck.console.settings.values import LIVE_SETTINGS
from slotdeck.console.sources.base import Answer
from slotdeck.console.sources.recording import RecordingSource
from tests.support import frames
from tests.support.console_app import GONE, FakeLoad, confirmed, console, screen_text, seen, until

SIZE = (80, 24)


async def test_editing_a_setting_shows_its_effect_then_pending_then_confirmed() -> None:
    app, source = console(frames.steady())
    async with app.run_test(size=SIZE) as pilot:
        await seen(pilot, "slots 3/4")
        await pilot.press("s")
        await seen(pilot, "+ and - or a number, 1 to 256 requests")
        await pilot.press("8")
        await seen(pilot, "slots 4→8: 8 x 2048 = 16.4k > pool 8.2k, preemption possible")
        await pilot.press("enter")
        await seen(pilot, "slots 4→8 pending")
        assert source.changes == [({"slots": 8}, 3)]
        source.give(confirmed(frames.steady(), 4, slots=8))
        await seen(pilot, "slots 4→8 in force")
        await seen(pilot, "slots 3/8")
        source.answer = lambda _changes: Answer(True, revision=5)
        await pilot.press("u")
        await until(pilot, lambda: source.changes[-1] == ({"slots": 4}, 4))
        source.give(confirmed(frames.steady(), 5))
        await seen(pilot, "slots 8→4 taken back")


async def test_escape_drops_and_a_refusal_is_shown() -> None:
    app, source = console(frames.steady())
    source.answer = lambda _changes: Answer(False, message="slots: at most 64 fit this pool")
    async with app.run_test(size=SIZE) as pilot:
        await seen(pilot, "slots 3/4")
        await pilot.press("d", "plus", "escape")
        assert source.changes == []
        assert "→" not in screen_text(app).splitlines()[-2]
        await pilot.press("s", "up", "j", "plus", "plus", "enter")
        await seen(pilot, "slots 4→6: slots: at most 64 fit this pool")


async def test_keys_without_an_engine_report_that_none_is_connected() -> None:
    app, source = console(GONE)
    async with app.run_test(size=SIZE) as pilot:
        await seen(pilot, "DISCONNECTED")
        await pilot.press("s")
        await seen(pilot, "no engine is connected")
        assert source.changes == []


async def test_a_recording_refuses_changes_and_cancels_at_once() -> None:
    app = ConsoleApp(RecordingSource([frames.steady()]))
    async with app.run_test(size=SIZE) as pilot:
        await seen(pilot, "slots 3/4")
        for keys in (("s",), ("o", "enter", "escape"), ("j", "K")):
            app.services.status.say("")
            await pilot.press(*keys)
            await seen(pilot, "a recording cannot be changed")
        assert app.services.session.settings.editor.edit is None
        assert app.services.status.prompt is None


async def test_pause_freezes_the_view_but_not_the_store() -> None:
    app, source = console(frames.steady())
    async with app.run_test(size=SIZE) as pilot:
        await seen(pilot, "slots 3/4")
        await pilot.press("space")
        await seen(pilot, "PAUSED")
        source.give(frames.draining())
        await until(pilot, lambda: app.services.session.store.view.frame == frames.draining())
        await pilot.pause(0.3)
        assert "draining" not in screen_text(app)
        await pilot.press("s")
        await seen(pilot, "slots 2")
        await pilot.press("escape", "space")
        await seen(pilot, "slots 4/2 draining")


async def test_disconnect_and_restart() -> None:
    app, source = console(frames.steady())
    async with app.run_test(size=SIZE) as pilot:
        await seen(pilot, "slots 3/4")
        source.give(GONE)
        await seen(pilot, "DISCONNECTED")
        assert "● decode" in screen_text(app)
        source.give(frames.empty().model_copy(update={"boot_id": "boot-2"}))
        await seen(pilot, "slots 0/4")
        assert "DISCONNECTED" not in screen_text(app)
        assert app.services.session.store.view.events[-2].text == "the engine was restarted"


async def test_a_failing_source_is_a_banner_and_not_a_crash() -> None:
    app, source = console(frames.steady())
    async with app.run_test(size=SIZE) as pilot:
        await seen(pilot, "slots 3/4")
        source.give("not an update")  # type: ignore[arg-type]
        await seen(pilot, "the console lost its source")


async def test_the_selection_moves_through_twenty_slots_and_scrolls() -> None:
    app, _source = console(frames.busy(1))
    async with app.run_test(size=SIZE) as pilot:
        await seen(pilot, "↓ 10 below")
        assert "›" not in screen_text(app)
        await pilot.press("j", "down")
        await seen(pilot, "›  1  ● decode")
        await pilot.press("G")
        await seen(pilot, "↑ 10 above  ↓ 0 below")
        await seen(pilot, "› 19  ● decode")
        await pilot.press("k", "pageup", "g")
        await seen(pilot, "↑ 0 above")
        await seen(pilot, "›  0  ● decode")
        await pilot.press("escape")
        await until(pilot, lambda: "›" not in screen_text(app))
        await pilot.resize_terminal(120, 40)
        await until(pilot, lambda: "below" not in screen_text(app))


async def test_a_waiting_request_can_be_selected_and_is_followed_into_a_slot() -> None:
    app, source = console(frames.nearly_full())
    async with app.run_test(size=SIZE) as pilot:
        await seen(pilot, "slots 4/4")
        await pilot.press("k")
        await seen(pilot, "›  2  kitchen")
        await pilot.press("k")
        await seen(pilot, "›  1  tablet")
        slots = list(frames.nearly_full().slots)
        slots[2] = frames.decoding(2, "tablet", 412, 3, request_id="w1")
        source.give(frames.frame(slots=tuple(slots), waiting=frames.WAITING[1:]))
        await seen(pilot, "›  2  ● decode    tablet")


async def test_filter_and_sort() -> None:
    app, _source = console(frames.nearly_full())
    async with app.run_test(size=SIZE) as pilot:
        await seen(pilot, "slots 4/4")
        await pilot.press("slash", *"tab")
        await seen(pilot, "filter tab_")
        await until(pilot, lambda: "● decode" not in screen_text(app))
        assert "tablet" in screen_text(app)
        await pilot.press("backspace", "backspace", "backspace", *"phone", "enter")
        await until(pilot, lambda: "decode    laptop" not in screen_text(app))
        assert app.services.status.prompt is None
        await pilot.press("escape")
        await seen(pilot, "decode    laptop")
        await pilot.press(*[">"] * 4)
        await seen(pilot, "slots sorted by output")
        await seen(pilot, "prmpt+out▾")
        rows = [line for line in screen_text(app).splitlines() if "● decode" in line]
        outputs = [int(line.split("+")[1].split()[0]) for line in rows]
        assert outputs == [301, 213, 190, 120]


async def test_con_07_the_selected_request_can_be_cancelled_after_asking() -> None:
    app, source = console(frames.steady())
    async with app.run_test(size=SIZE) as pilot:
        await seen(pilot, "slots 3/4")
        await pilot.press("K")
        await seen(pilot, "no request is selected")
        await pilot.press("j", "K")
        await seen(pilot, "cancel laptop?")
        await pilot.press("n")
        await until(pilot, lambda: app.services.status.prompt is None)
        assert source.cancelled == []
        await pilot.press("K", "y")
        await seen(pilot, "laptop cancelled")
        assert source.cancelled == ["r0"]
        source.cancel_answer = Answer(False, message="this request has ended already")
        await pilot.press("K", "y")
        await seen(pilot, "laptop not cancelled: this request has ended already")


async def test_copy_gives_the_terminal_the_request_or_the_page() -> None:
    app, _source = console(frames.steady())
    async with app.run_test(size=SIZE) as pilot:
        await seen(pilot, "slots 3/4")
        await pilot.press("y")
        assert "KV pool" in app.clipboard
        await pilot.press("j", "y")
        assert app.clipboard.startswith("r0\n")
        assert "laptop" in app.clipboard


async def test_zoom_gives_one_part_the_whole_body_and_esc_comes_back() -> None:
    app, _source = console(frames.nearly_full())
    async with app.run_test(size=SIZE) as pilot:
        await seen(pilot, "waiting 2")
        await pilot.press("z")
        await until(pilot, lambda: "waiting 2" not in screen_text(app))
        assert "● decode" in screen_text(app)
        await pilot.press("escape")
        await seen(pilot, "waiting 2")


async def test_the_panel_lists_all_settings_and_edits_one() -> None:
    app, source = console(frames.steady())
    async with app.run_test(size=SIZE) as pilot:
        await seen(pilot, "slots 3/4")
        await pilot.press("o")
        await seen(pilot, "● decode")
        for name in LIVE_SETTINGS:
            await seen(pilot, name)
            await pilot.press("j")
        await pilot.press("g", "j", "j", "enter")
        await seen(pilot, f"{LIVE_SETTINGS[2]} 16")
        await pilot.press("plus")
        await seen(pilot, f"{LIVE_SETTINGS[2]} 16→17")
        await pilot.press("enter")
        await until(pilot, lambda: source.changes == [({LIVE_SETTINGS[2]: 17}, 3)])
        await pilot.press("escape")
        await until(pilot, lambda: "─ settings" not in screen_text(app))


async def test_the_refresh_rate_goes_down_and_round() -> None:
    app, _source = console(frames.steady())
    async with app.run_test(size=SIZE) as pilot:
        await seen(pilot, "slots 3/4")
        await pilot.press("r")
        await seen(pilot, "drawn 2 times a second")
        await pilot.press("r", "r")
        await seen(pilot, "drawn every 2 s")
        await pilot.press("r")
        await seen(pilot, "drawn 4 times a second")


async def test_simulated_users_start_stop_and_leave_with_the_console() -> None:
    load = FakeLoad()
    app, _source = console(frames.empty(), load=load)
    async with app.run_test(size=SIZE) as pilot:
        await seen(pilot, "press L")
        await pilot.press("L")
        await seen(pilot, "load 5 users")
        await pilot.press("L")
        await until(pilot, lambda: not load.running)
        await pilot.press("L")
        load.ended = "the simulated users failed (exit 1), see /tmp/load.log"
        await seen(pilot, "the simulated users failed")
        load.running = True
    assert not load.running


async def test_screenshot_lands_in_the_state_folder(tmp_path: Path) -> None:
    app, _source = console(frames.steady())
    async with app.run_test(size=SIZE) as pilot:
        await seen(pilot, "slots 3/4")
        await pilot.press("f8")
        [picture] = (tmp_path / "state_home" / "slotdeck" / "screenshots").glob("*.svg")
        assert "SmolLM2" in picture.read_text("utf-8")


async def test_client_text_is_never_markup() -> None:
    hostile = "[b @click=exit]x[/]"
    slot = frames.decoding(0, hostile, 10, 5)
    app, _source = console(frames.frame(slots=(slot,)), notices=["[bold]notice[/bold]"])
    async with app.run_test(size=(180, 50)) as pilot:
        await seen(pilot, hostile)
        assert [n.message for n in app._notifications] == ["[bold]notice[/bold]"]
        assert all(not n.markup for n in app._notifications)


async def test_a_tick_without_changes_repaints_nothing() -> None:
    app, source = console(frames.busy(1))
    async with app.run_test(size=(120, 36)) as pilot:
        await seen(pilot, "slots 20/20")
        await pilot.pause(0.3)
        painted: list[int] = []
        show = app.base.canvas.show
        app.base.canvas.show = lambda lines, dimmed=0: painted.append(show(lines, dimmed=dimmed)) or 0  # type: ignore
        source.give(frames.busy(1))
        await pilot.pause(0.6)
        assert sum(painted) == 0
        slots = list(frames.busy(1).slots)
        slots[3] = slots[3].model_copy(update={"output_tokens": 399})
        source.give(frames.busy(1).model_copy(update={"slots": tuple(slots)}))
        await until(pilot, lambda: sum(painted) == 1, "one changed row")
