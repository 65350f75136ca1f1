"""Help, flags, settings, info: what the command line answers without a terminal."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from slotdeck.console.cli import exits
from slotdeck.console.cli.exits import CODES, EPILOG
from slotdeck.console.cli.flags import settings_flags
from slotdeck.console.cli.main import app
from slotdeck.console.cli.variables import unread_variables
from slotdeck.console.hosting.engine_process import LogTail
from slotdeck.engine import __version__
from slotdeck.engine.configuration import to_environment
from slotdeck.engine.settings import SETTINGS
from tests.support.deck import ROOT, Deck
from tests.support.fake_engine import engine_on

HEAVY = ("torch", "transformers", "textual", "httpx", "numpy", "rich")


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["serve", "--help"], ["bench", "--help"]])
def test_help_and_version_import_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys\n"
        "from slotdeck.console.cli.main import run\n"
        "sys.argv = ['slotdeck', *sys.argv[1:]]\n"
        "try:\n    run()\n"
        f"finally:\n    print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)\n"
    )
    result = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert result.returncode == 0
    assert result.stderr == "[]\n"
    assert result.stdout


def test_version_is_that_of_the_package() -> None:
    assert CliRunner().invoke(app, ["--version"]).stdout == f"slotdeck {__version__}\n"


@pytest.mark.parametrize("command", [[], ["serve"]])
def test_every_setting_of_the_table_is_a_flag_with_its_range_and_default(command: list[str]) -> None:
    text = " ".join(CliRunner().invoke(app, [*command, "--help"], terminal_width=200).stdout.split())
    for setting in SETTINGS.values():
        assert f"{setting.flag} " in text
        assert setting.help[:40] in text
    assert "1 to 256 requests; default 4" in text
    assert "[default on]" in text
    assert "[default off]" in text
    assert "True" not in text
    assert "False" not in text
    assert EPILOG in text


@pytest.mark.parametrize("command", ["", "attach", "doctor", "probe", "history export", "config show"])
def test_help_api_page_and_code_agree_on_the_exit_codes(command: str) -> None:
    page = " ".join((ROOT / "engine" / "API.md").read_text("utf-8").split())
    assert EPILOG in page
    assert EPILOG in " ".join(CliRunner().invoke(app, [*command.split(), "--help"]).stdout.split())
    given = {value for name, value in vars(exits).items() if name.isupper() and isinstance(value, int)}
    assert given == set(CODES)


def test_only_what_was_given_reaches_the_command() -> None:
    seen: list[dict[str, object]] = []
    own = typer.Typer()

    @own.command()
    @settings_flags()
    def command(settings: dict[str, object]) -> None:
        seen.append(settings)

    runner = CliRunner()
    runner.invoke(own, [])
    runner.invoke(own, ["--slots", "8", "--api-key", "a=1", "--api-key", "b=2", "--heartbeat", "2.5", "--model", "x"])
    runner.invoke(own, ["--queue", "0"])
    assert seen == [
        {},
        {"model": "x", "slots": 8, "api_key": ["a=1", "b=2"], "heartbeat": 2.5},
        {"queue": 0},
    ]
    assert to_environment(seen[1])["SLOTDECK_API_KEY"] == "a=1,b=2"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["serve", "--slots", "999"], "--slots must be between 1 and 256 requests, not 999"),
        (["serve", "--slots", "many"], "--slots"),
        (["--port", "70000"], "--port must be between 0 and 65535"),
        (["serve", "--weights", "int3"], "--weights"),
        (["serve", "--api-key", "nolabel"], "LABEL=KEY"),
        (["--slots", "2", "info"], "--slots does not apply to `slotdeck info`"),
        (["--slots", "2", "attach"], "--slots does not apply to `slotdeck attach`"),
    ],
)
def test_a_bad_setting_is_one_line_and_exit_2(deck: Deck, arguments: list[str], words: str) -> None:
    result = deck.without_terminal(*arguments)
    assert result.returncode == 2
    assert result.stdout == ""
    assert words in result.stderr
    assert result.stderr.startswith("slotdeck: ")
    assert result.stderr.count("\n") == 1


def test_a_bad_configuration_file_is_one_line_and_exit_2(deck: Deck) -> None:
    file = deck.folder / "bad.toml"
    file.write_text("slotz = 3\n")
    result = deck.without_terminal("info", SLOTDECK_CONFIG=str(file))
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert "slotz" in result.stderr


def test_a_variable_that_nothing_reads_is_named_with_the_nearest_that_is(deck: Deck) -> None:
    read = {"SLOTDECK_CACHE": str(deck.folder), "SLOTDECK_ASCII": "1", "SLOTDECK_API_KEY": "a=1"}
    assert deck.without_terminal("info", **read, SLOTDECK_TEST_KERNELS="1").stderr == ""
    result = deck.without_terminal("info", **read, SLOTDECK_SLOT="8", SLOTDECK_XYZZY="1")
    assert (result.returncode, result.stderr) == (
        0,
        "slotdeck: ignored because there is no such setting: SLOTDECK_SLOT (did you mean SLOTDECK_SLOTS?), "
        "SLOTDECK_XYZZY; `slotdeck config show` lists all settings\n",
    )


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("SLOTDECK_PROT", "PORT"), ("SLOTDECK_slots", "SLOTS"), ("SLOTDECK_APIKEY", "API_KEY"),
     ("SLOTDECK_CONFIG_FILE", "CONFIG"), ("SLOTDECK_KV_TOKEN", "KV_TOKENS")],
)  # fmt: skip
def test_the_nearest_variable_is_found_whatever_was_mistyped(name: str, nearest: str) -> None:
    assert f"{name} (did you mean SLOTDECK_{nearest}?)" in (unread_variables([name, "PATH", "SLOTDECK_SLOTS"]) or "")


def test_a_key_on_the_command_line_is_not_repeated_in_a_complaint(deck: Deck) -> None:
    result = deck.without_terminal("serve", "--api-key", "hunter2")
    assert "hunter2" not in result.stderr


def test_serve_becomes_the_engine_with_the_flags_of_both_places(deck: Deck) -> None:
    result = deck.without_terminal("--slots", "9", "serve", "--queue", "2", FAKE_ENGINE="fail 3")
    assert result.returncode == 3
    assert "slots 9" in result.stdout


def test_model_passes_arguments_and_exit_code_on(deck: Deck) -> None:
    result = deck.without_terminal("model", "info", "smollm2", "--json", "--help")
    assert result.stdout == "model info smollm2 --json --help\n"
    assert result.returncode == 7


def test_info_says_versions_and_paths_and_that_no_engine_runs(deck: Deck) -> None:
    info = json.loads(deck.without_terminal("info", "--json").stdout)
    assert info["versions"]["slotdeck"] == __version__
    assert info["versions"]["torch"]
    assert info["paths"]["socket"] == str(deck.folder / "engine.sock")
    assert info["paths"]["config"] == str(deck.folder / "config" / "slotdeck" / "config.toml")
    assert info["engine"] is None
    text = deck.without_terminal("info").stdout
    assert "none runs; `slotdeck` starts one" in text


async def test_info_names_the_engine_that_runs(deck: Deck) -> None:
    async with engine_on(deck.folder / "engine.sock") as engine:
        engine.slots = 6
        result = await asyncio.to_thread(deck.without_terminal, "info", "--json")
        text = await asyncio.to_thread(deck.without_terminal, "info")
    running = json.loads(result.stdout)["engine"]
    assert (running["pid"], running["model"], running["health"]) == (os.getpid(), "fake", "ok")
    assert running["settings"]["slots"] == 6
    assert str(os.getpid()) in text.stdout


def test_a_terminal_without_utf_8_gets_question_marks_and_no_crash(deck: Deck) -> None:
    result = deck.without_terminal("serve", "--model", "/häuser/…", FAKE_ENGINE="fail 1", PYTHONIOENCODING="latin-1")
    assert "UnicodeEncodeError" not in result.stderr


def test_the_log_s_newest_progress_is_found_among_other_lines(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text("slotdeck: of an earlier run\n")
    tail = LogTail(log)
    assert tail.progress() is None
    with log.open("ab") as file:
        file.write(b"slotdeck: fetching 10 %\rslotdeck: fetching 20 %\rnoise\nslotdeck: half a li")
    assert tail.progress() == "fetching 20 %"
    with log.open("ab") as file:
        file.write(b"ne\n")
    assert tail.progress() == "half a line"
