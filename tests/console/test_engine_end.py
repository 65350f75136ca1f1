"""The engine dies or is restarted while a console runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from slotdeck.console.app import ConsoleApp, run_console
from slotdeck.console.drawing.cells import plain
from slotdeck.console.keys.keymap import Keymap
from slotdeck.console.screens.help import help_lines
from slotdeck.console.sources.base import Disconnected, EngineEnd
from tests.support import frames
from tests.support.console_app import GONE, ScriptedSource, console, screen_text, seen

SIZE = (80, 24)
KILLED = EngineEnd("signal 9, out of memory?", log=Path("/var/lib/somebody/slotdeck/engine.log"))
DIED = Disconnected("the engine has ended", end=KILLED)


async def test_a_killed_engine_is_reported_with_its_log_and_q_exits_with_1() -> None:
    app, source = console(frames.steady(), hosted=True)
    async with app.run_test(size=SIZE) as pilot:
        await seen(pilot, "slots 3/4")
        source.give(DIED)
        await seen(pilot, "ENGINE ENDED (signal 9, out of memory?)  q leaves; slotdeck starts a new one")
        assert "/var/lib/somebody/slotdeck/engine.log" in screen_text(app).splitlines()[-2]
        slots = next(line for line in app.base.canvas.lines if "● decode" in plain(line))
        assert slots[-1] == ("", "dimmed")
        await pilot.press("q")
    assert app.return_value == 1


async def test_the_doctor_does_not_call_a_dead_engine_healthy() -> None:
    app, source = console(frames.empty())
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("5")
        await seen(pilot, "Nothing is wrong.")
        source.give(DIED)
        await seen(pilot, "The engine has ended; nothing was wrong until then.")
        assert "Nothing is wrong" not in screen_text(app)


async def test_a_stopped_engine_is_not_a_failure() -> None:
    app, source = console(frames.steady(), hosted=True)
    async with app.run_test(size=SIZE) as pilot:
        await seen(pilot, "slots 3/4")
        source.give(Disconnected("the engine has ended", end=EngineEnd("it was stopped", clean=True)))
        await seen(pilot, "ENGINE ENDED (it was stopped)")
        await pilot.press("q")
    assert app.return_value == 0


async def test_an_engine_restarted_by_its_supervisor_is_shown_again() -> None:
    app, source = console(frames.steady())
    async with app.run_test(size=SIZE) as pilot:
        await seen(pilot, "slots 3/4")
        source.give(DIED)
        await seen(pilot, "ENGINE ENDED")
        source.give(frames.empty().model_copy(update={"boot_id": "boot-2"}))
        await seen(pilot, "slots 0/4")
        assert "ENGINE ENDED" not in screen_text(app)
        assert app.services.leaving.exit_code == 0


def test_the_shell_gets_one_line_about_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def run(app: ConsoleApp, **_: object) -> int:
        app.services.session.store.apply(frames.steady())
        app.services.session.store.apply(DIED)
        return app.services.leaving.exit_code

    monkeypatch.setattr(ConsoleApp, "run", run)
    assert run_console(ScriptedSource(), hosted=True) == 1
    assert capsys.readouterr().err == (
        "slotdeck: the engine has ended (signal 9, out of memory?); its log: /var/lib/somebody/slotdeck/engine.log\n"
    )


async def test_what_was_said_about_a_missing_engine_goes_when_it_is_there() -> None:
    app, source = console(GONE)
    async with app.run_test(size=SIZE) as pilot:
        await seen(pilot, "DISCONNECTED")
        await pilot.press("s")
        await seen(pilot, "no engine is connected")
        source.give(frames.steady())
        await seen(pilot, "slots 3/4")
        assert "no engine is connected" not in screen_text(app)


def test_no_line_of_the_help_is_cut() -> None:
    assert [plain(line) for line in help_lines(Keymap()) if "…" in plain(line)] == []


async def test_the_palette_calls_each_setting_once_by_its_name() -> None:
    app, _source = console(frames.steady())
    async with app.run_test(size=SIZE):
        titles = [command.title for command in app.get_system_commands(app.screen)]
    assert {"slots", "context", "kv_tokens"} <= set(titles)
    assert not any(len({*title.split()}) < len(title.split()) for title in titles)
