"""The running app: keys, knobs, pausing, themes, load, leaving. Driven by keys as an admin would."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.color import Color
from textual.theme import Theme

from console.actions import ACTIONS, action_for, bindings, footer_line, groups, with_keys_table
from console.app import ConsoleApp
from console.knobs import KNOBS
from console.screens.help import HelpScreen, help_lines
from console.screens.leave import LeaveScreen
from console.sources.base import Answer, Disconnected
from console.widgets.cells import plain
from engine.settings import SETTINGS
from tests.console import frames
from tests.console.helpers import GONE, FakeLoad, confirmed, console, screen_text, seen, until

SIZE = (80, 24)
README = Path(__file__).parents[2] / "README.md"


async def test_turning_a_knob_shows_consequence_then_pending_then_confirmed() -> None:
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


async def test_keys_without_an_engine_say_so() -> None:
    app, source = console(GONE)
    async with app.run_test(size=SIZE) as pilot:
        await seen(pilot, "DISCONNECTED")
        await pilot.press("s")
        await seen(pilot, "no engine is connected")
        assert source.changes == []


async def test_pause_freezes_the_view_but_not_the_store() -> None:
    app, source = console(frames.steady())
    async with app.run_test(size=SIZE) as pilot:
        await seen(pilot, "slots 3/4")
        await pilot.press("space")
        await seen(pilot, "PAUSED")
        source.give(frames.draining())
        await until(pilot, lambda: app.store.view.frame == frames.draining())
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
        assert app.store.view.events[-2].text == "the engine was restarted"


async def test_a_source_that_fails_is_a_banner_not_a_crash() -> None:
    app, source = console(frames.steady())
    async with app.run_test(size=SIZE) as pilot:
        await seen(pilot, "slots 3/4")
        source.give("not an update")  # type: ignore[arg-type]
        await seen(pilot, "the console lost its source")


async def test_scrolling_through_twenty_slots() -> None:
    app, _source = console(frames.busy(1))
    async with app.run_test(size=SIZE) as pilot:
        await seen(pilot, "↓ 10 below")
        await pilot.press("j", "down")
        await seen(pilot, "↑ 2 above  ↓ 8 below")
        await pilot.press("G")
        await seen(pilot, "↑ 10 above  ↓ 0 below")
        await pilot.press("k", "pageup", "g")
        await seen(pilot, "↑ 0 above")
        await pilot.resize_terminal(120, 40)
        await until(pilot, lambda: "below" not in screen_text(app))


async def test_simulated_users_start_stop_and_leave_with_the_console() -> None:
    load = FakeLoad()
    app, _source = console(frames.empty(), on_toggle_load=load)
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


async def test_themes_cycle_and_a_broken_user_theme_gives_one_toast(tmp_path: Path) -> None:
    folder = tmp_path / "data_home" / "slotdeck" / "themes"
    folder.mkdir(parents=True)
    (folder / "broken.toml").write_text('name = "x"\nprimary = "not a colour"\n')
    app, _source = console(frames.steady())
    async with app.run_test(size=SIZE) as pilot:
        await seen(pilot, "slots 3/4")
        toasts = [n.message for n in app._notifications]
        assert len(toasts) == 1
        assert toasts[0].startswith("theme broken.toml: ")
        before = app.theme
        for _ in app._themes:
            await pilot.press("t")
            await seen(pilot, f"theme {app.theme}")
        assert app.theme == before


async def test_screenshot_lands_in_the_state_folder(tmp_path: Path) -> None:
    app, _source = console(frames.steady())
    async with app.run_test(size=SIZE) as pilot:
        await seen(pilot, "slots 3/4")
        await pilot.press("f8")
        [picture] = (tmp_path / "state_home" / "slotdeck" / "screenshots").glob("*.svg")
        assert "SmolLM2" in picture.read_text("utf-8")


async def test_help_lists_every_action_and_closes() -> None:
    app, _source = console(frames.steady())
    async with app.run_test(size=SIZE) as pilot:
        await seen(pilot, "slots 3/4")
        await pilot.press("question_mark")
        await until(pilot, lambda: isinstance(app.screen, HelpScreen))
        await pilot.press("j", "pagedown", "escape")
        await until(pilot, lambda: app.screen is app.live)
        await pilot.press("f1", "q")
        await until(pilot, lambda: app.screen is app.live)


async def test_the_palette_runs_actions() -> None:
    app, _source = console(frames.steady())
    async with app.run_test(size=SIZE) as pilot:
        await seen(pilot, "slots 3/4")
        await pilot.press("colon")
        await pilot.pause(0.2)
        await pilot.press(*"pause")
        await pilot.pause(0.5)
        await pilot.press("enter", "enter")
        await seen(pilot, "PAUSED")


@pytest.mark.parametrize("key", ["q", "ctrl+c", "f10", "ctrl+q"])
async def test_tui_14_leaving_an_engine_of_others_only_detaches(key: str) -> None:
    app, source = console(frames.nearly_full())
    async with app.run_test(size=SIZE) as pilot:
        await seen(pilot, "slots 4/4")
        await pilot.press(key)
        await until(pilot, lambda: not app.is_running)
    assert source.shutdowns == []
    assert app.return_value == 0


async def test_leaving_a_hosted_engine_asks_and_waits_for_the_drain() -> None:
    app, source = console(frames.nearly_full(), hosted=True)
    async with app.run_test(size=SIZE) as pilot:
        await seen(pilot, "slots 4/4")
        await pilot.press("q")
        await until(pilot, lambda: isinstance(app.screen, LeaveScreen))
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is app.live)
        await pilot.press("ctrl+c")
        await until(pilot, lambda: isinstance(app.screen, LeaveScreen))
        await pilot.press("s")
        await until(pilot, lambda: source.shutdowns == [False])
        source.give(frames.nearly_full().model_copy(update={"health": "draining", "sequence": 2}))
        await seen(pilot, "DRAINING")
        assert app.is_running
        source.give(GONE)
        await until(pilot, lambda: not app.is_running)
    assert app.return_value == 0


async def test_a_hosted_engine_can_be_left_running() -> None:
    app, source = console(frames.nearly_full(), hosted=True)
    async with app.run_test(size=SIZE) as pilot:
        await seen(pilot, "slots 4/4")
        await pilot.press("q", "l")
        await until(pilot, lambda: not app.is_running)
    assert source.shutdowns == []


async def test_a_second_quit_forces() -> None:
    app, source = console(frames.nearly_full(), hosted=True)
    async with app.run_test(size=SIZE) as pilot:
        await seen(pilot, "slots 4/4")
        await pilot.press("q", "ctrl+c")
        await until(pilot, lambda: source.shutdowns == [True])
        source.give(GONE)
        await until(pilot, lambda: not app.is_running)


async def test_an_idle_hosted_engine_stops_without_a_question() -> None:
    app, source = console(frames.empty(), hosted=True)
    async with app.run_test(size=SIZE) as pilot:
        await seen(pilot, "slots 0/4")
        await pilot.press("q")
        await until(pilot, lambda: source.shutdowns == [False])
        source.give(Disconnected("gone"))
        await until(pilot, lambda: not app.is_running)


async def test_an_engine_that_refuses_to_stop_keeps_the_question() -> None:
    app, source = console(frames.nearly_full(), hosted=True)
    source.shutdown_answer = Answer(False, message="the admin API answered 500")
    async with app.run_test(size=SIZE) as pilot:
        await seen(pilot, "slots 4/4")
        await pilot.press("q", "s")
        await until(pilot, lambda: app.leaving_problem)
        assert app.is_running
        panel = app.screen
        assert isinstance(panel, LeaveScreen)
        await until(pilot, lambda: any("does not stop" in plain(line) for line in panel._canvas.lines))
        await pilot.press("l")
        await until(pilot, lambda: not app.is_running)


def test_one_registry_feeds_bindings_palette_footer_and_help() -> None:
    bound = {binding.key for binding in bindings()}
    assert bound == {key for action in ACTIONS for key in action.keys}
    for editing in (False, True):
        for key in bound:
            action = action_for(key, editing=editing)
            assert action is None or hasattr(ConsoleApp, f"action_{action.call[0]}")
    for mode in (("always", "browse"), ("always", "knob")):
        keys = [key for action in ACTIONS if action.mode in mode for key in action.keys]
        assert len(keys) == len(set(keys)), "two actions want the same key"
    text = "\n".join(plain(line) for line in help_lines())
    for action in ACTIONS:
        assert action.shown in text
        assert action.help[:40] in text
    assert {SETTINGS[name].key for name in KNOBS} == {"s", "c", "d", "b"}
    assert sum(len(actions) for actions in groups().values()) == len(ACTIONS)
    footer = plain(footer_line(editing=False, cells=80))
    for action in ACTIONS:
        if action.footer is not None and action.mode != "knob":
            assert action.label in footer


async def test_the_palette_lists_the_registry() -> None:
    app, _source = console(frames.steady())
    async with app.run_test(size=SIZE):
        commands = {command.help for command in app.get_system_commands(app.screen)}
    expected = {a.help for a in ACTIONS if a.mode != "knob" and a.call[0] != "palette"}
    assert {text.rpartition(" (")[0] for text in commands} == expected


def test_the_readme_has_the_same_keys() -> None:
    text = README.read_text("utf-8")
    if text.partition("<!-- keys -->")[2].strip().startswith("<!-- /keys -->"):
        pytest.skip("the README's table of keys is still empty")
    assert "<!-- keys -->" in text
    assert with_keys_table(text) == text


async def test_client_text_is_never_markup() -> None:
    hostile = "[b @click=exit]x[/]"
    slot = frames.decoding(0, hostile, 10, 5)
    app, _source = console(frames.frame(slots=(slot,)), notices=["[bold]notice[/bold]"])
    async with app.run_test(size=(180, 50)) as pilot:
        await seen(pilot, hostile)
        assert [n.message for n in app._notifications] == ["[bold]notice[/bold]"]
        assert all(not n.markup for n in app._notifications)


async def test_a_tick_without_news_repaints_nothing() -> None:
    app, source = console(frames.busy(1))
    async with app.run_test(size=(120, 36)) as pilot:
        await seen(pilot, "slots 20/20")
        await pilot.pause(0.3)
        painted: list[int] = []
        show = app.live.canvas.show
        app.live.canvas.show = lambda lines, dimmed=0: painted.append(show(lines, dimmed=dimmed)) or 0  # type: ignore
        source.give(frames.busy(1))
        await pilot.pause(0.6)
        assert sum(painted) == 0
        slots = list(frames.busy(1).slots)
        slots[3] = slots[3].model_copy(update={"output_tokens": 399})
        source.give(frames.busy(1).model_copy(update={"slots": tuple(slots)}))
        await until(pilot, lambda: sum(painted) == 1, "one changed row")


def contrast_ratio(one: Color, other: Color) -> float:
    """As WCAG defines it."""

    def luminance(colour: Color) -> float:
        parts = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour.normalized]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_themes_are_readable() -> None:
    """Labels and states keep a contrast of 4.5, quiet text one of 3, on every theme with colours of its own."""
    from console.themes import SLOT_STATES, load_themes

    themes, problems = load_themes()
    assert problems == []
    assert set(themes) == {"slotdeck-dark", "slotdeck-light", "slotdeck-contrast", "slotdeck-ansi"}
    for theme in themes.values():
        assert isinstance(theme.theme, Theme)
        if theme.theme.ansi:
            continue
        ground = Color.parse(theme.theme.background or "")
        for name, style in theme.styles.items():
            assert style.color is not None
            contrast = contrast_ratio(ground, Color.from_rich_color(style.color))
            if name in ("label", "value", "text", "warn", "critical", "ok", "key", *SLOT_STATES[1:]):
                assert contrast >= 4.5, (theme.theme.name, name, contrast)
            elif name in ("idle", "cached"):
                assert contrast >= 3, (theme.theme.name, name, contrast)
