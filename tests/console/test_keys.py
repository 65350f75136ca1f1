"""Keys, palette, footer and help come from one registry, and every command has a handler."""

from __future__ import annotations

from typing import Any

import pytest
from textual.command import CommandList, CommandPalette

from slotdeck.console.drawing.cells import plain
from slotdeck.console.keys.actions import ACTIONS, SETTING_KEYS, Command
from slotdeck.console.keys.keymap import Keymap
from slotdeck.console.pages.page_registry import PAGES, make_page
from slotdeck.console.screens.help import HelpScreen, help_lines
from slotdeck.console.terminal.configuration import ConsoleConfiguration
from tests.support import frames
from tests.support.console_app import console, screen_text, seen, until

SIZE = (80, 24)


async def test_keys_of_the_user_replace_those_of_the_registry_and_bad_ones_are_reported() -> None:
    own: dict[str, Any] = {
        "pause": "x",
        "load": ["f5", "L"],
        "nonsense": "n",
        "undo": "q",
    }
    app, _source = console(frames.steady(), configuration=ConsoleConfiguration(keys=own))
    async with app.run_test(size=SIZE) as pilot:
        await seen(pilot, "slots 3/4")
        toasts = [n.message for n in app._notifications]
        assert any("nonsense" in toast for toast in toasts)
        assert any("undo cannot have 'q'" in toast for toast in toasts)
        await pilot.press("space")
        assert "PAUSED" not in screen_text(app)
        await pilot.press("x")
        await seen(pilot, "PAUSED")


async def test_help_lists_every_action_and_closes() -> None:
    app, _source = console(frames.steady())
    async with app.run_test(size=SIZE) as pilot:
        await seen(pilot, "slots 3/4")
        await pilot.press("question_mark")
        await until(pilot, lambda: isinstance(app.screen, HelpScreen))
        panel = app.screen
        assert isinstance(panel, HelpScreen)
        shown: set[str] = set()
        for _ in range(20):
            shown |= {plain(line).strip() for line in panel.canvas.lines}
            await pilot.press("pagedown")
        for action in ACTIONS:
            assert any(line.startswith(f"{action.shown} ") and action.help[:30] in line for line in shown), action
        assert any(line.startswith("–: unknown.") for line in shown), "the last line can be reached"
        await pilot.press("j", "escape")
        await until(pilot, lambda: app.screen is app.base)
        await pilot.press("f1", "q")
        await until(pilot, lambda: app.screen is app.base)


async def test_the_palette_runs_actions() -> None:
    app, _source = console(frames.steady())
    async with app.run_test(size=SIZE) as pilot:
        await seen(pilot, "slots 3/4")
        await pilot.press("colon")
        await until(pilot, lambda: isinstance(app.screen, CommandPalette))
        palette = app.screen.query_one(CommandList)
        await pilot.press(*"pause")
        await until(pilot, lambda: palette.option_count and "pause" in str(palette.options[0].prompt))
        await pilot.press("enter")
        await seen(pilot, "PAUSED")


async def test_every_command_has_a_handler_on_every_page_that_has_its_key() -> None:
    app, _source = console(frames.steady())
    async with app.run_test(size=SIZE):
        services = app.services
        pages = {name: make_page(name, services.context).handlers for name in PAGES}
    tables = pages | {"panel": services.settings_panel.handlers}
    for action in ACTIONS:
        for page in action.pages:
            assert action.command in tables[page], f"{page} has a key for {action.label} and no handler"
        everywhere = action.command in services.handlers
        assert everywhere or any(action.command in table for table in pages.values()), action.label
    known: dict[str, Any] = {action.command for action in ACTIONS}
    assert all(set(table) <= known for table in (services.handlers, *tables.values())), "a handler without a key"


@pytest.mark.parametrize("editing", [False, True])
@pytest.mark.parametrize("page", [*PAGES, "panel"])
def test_no_two_actions_want_the_same_key(page: str, editing: bool) -> None:
    keymap = Keymap()
    refused = "browsing" if editing else "editing"
    here = [a for a in ACTIONS if a.mode != refused and (not a.pages or page in a.pages)]
    for action in here:
        for key in action.keys:
            met = keymap.action_for(key, editing=editing, page=page)
            assert met is not None
            assert met is action or bool(met.pages) > bool(action.pages), f"two actions want {key}"
    assert "q" in {key for action in here for key in action.keys}


def test_help_and_footer_list_the_registry() -> None:
    keymap = Keymap()
    text = "\n".join(plain(line) for line in help_lines(keymap))
    assert "At temperature 0" in text, "NUM-01: what people expect of it"
    for action in ACTIONS:
        assert action.shown in text
        assert action.help[:40] in text
    assert set(SETTING_KEYS.values()) >= {"s", "c", "d", "b"}
    assert sum(len(actions) for actions in keymap.groups().values()) == len(ACTIONS)
    footer = plain(keymap.footer_line(editing=False, width=300))
    for action in ACTIONS:
        if action.footer is not None and action.mode != "editing" and (not action.pages or "live" in action.pages):
            assert action.label in footer


async def test_the_palette_lists_the_registry() -> None:
    app, _source = console(frames.steady())
    async with app.run_test(size=SIZE):
        commands = {command.help for command in app.get_system_commands(app.screen)}
    expected = {a.help for a in ACTIONS if a.mode != "editing" and a.command is not Command.PALETTE}
    assert {text.rpartition(" (")[0] for text in commands} == expected
