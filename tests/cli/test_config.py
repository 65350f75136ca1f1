"""`slotdeck config show`, and the console's own file: where each value came from; a bad entry is a sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from slotdeck.console.cli.main import app
from slotdeck.console.terminal.configuration import ConsoleConfiguration, load_configuration
from slotdeck.engine.settings import SETTINGS


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("CONFIG_HOME", "STATE_HOME", "RUNTIME_DIR"):
        monkeypatch.setenv(f"XDG_{name}", str(tmp_path))
    for setting in SETTINGS.values():
        monkeypatch.delenv(setting.variable, raising=False)
    monkeypatch.delenv("SLOTDECK_CONFIG", raising=False)
    (tmp_path / "slotdeck").mkdir(exist_ok=True)
    return tmp_path / "slotdeck"


def shown(*arguments: str) -> dict[str, tuple[object, str]]:
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    return {row["name"]: (row["value"], row["source"]) for row in json.loads(result.stdout)["settings"]}


def test_each_value_says_whether_flag_variable_file_or_default(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "config.toml").write_text("slots = 2\ncontext = 1024\nqueue = 3\n")
    monkeypatch.setenv("SLOTDECK_SLOTS", "6")
    monkeypatch.setenv("SLOTDECK_CONTEXT", "4096")
    rows = shown("config", "show", "--slots", "8")
    assert rows["slots"] == (8, "--slots")
    assert rows["context"] == (4096, "SLOTDECK_CONTEXT")
    assert rows["queue"] == (3, str(folder / "config.toml"))
    assert rows["port"] == (8000, "default")
    assert list(rows) == list(SETTINGS)
    assert shown("--slots", "8", "config", "show")["slots"] == (8, "--slots")


def test_keys_are_never_printed(folder: Path) -> None:
    result = CliRunner().invoke(app, ["config", "show", "--api-key", "laptop=s3cret"])
    assert result.exit_code == 0
    assert "laptop" in result.stdout
    assert "s3cret" not in result.output


def test_a_bad_value_is_one_line_and_exit_2(folder: Path) -> None:
    (folder / "config.toml").write_text("slots = 0\n")
    result = CliRunner().invoke(app, ["config", "show"])
    assert result.exit_code == 2
    assert "slots in" in result.output


def test_sizes_may_have_a_unit(folder: Path) -> None:
    (folder / "config.toml").write_text('max_body = "8MB"\n')
    rows = shown("config", "show", "--swap-space", "2GiB")
    assert (rows["swap_space"][0], rows["max_body"][0]) == (2 << 30, 8_000_000)


@pytest.mark.parametrize(
    ("flag", "value", "sentence"),
    [
        ("--slots", "many", "--slots: give a whole number (got 'many')"),
        ("--swap-space", "2 barrels", "give a whole number, or a size such as 500MB or 2GiB"),
        ("--swap-space", "900GiB9", "give a whole number, or a size"),
        ("--device", "gpu", "give auto, cpu, cuda or cuda:N"),
    ],
)
def test_a_value_of_the_wrong_kind_says_what_to_give(folder: Path, flag: str, value: str, sentence: str) -> None:
    result = CliRunner().invoke(app, ["config", "show", flag, value])
    assert result.exit_code == 2
    assert sentence in result.output


def test_the_console_s_own_file_is_shown_with_its_problems(folder: Path) -> None:
    (folder / "console.toml").write_text('rate = 2\nmouse = "yes"\ncolour = 1\n[keys]\npause = "p"\n')
    text = CliRunner().invoke(app, ["config", "show"]).stdout
    assert "rate     2" in text
    assert "keys     pause = p" in text
    assert "mouse must be true or false" in text
    assert "'colour' is unknown" in text


@pytest.mark.parametrize(
    ("text", "kept", "problem"),
    [
        ('theme = "x"\nrate = 0.5\nascii = true\n', {"theme": "x", "rate": 0.5, "ascii": True}, ""),
        ("rate = 9\n", {}, "rate must be a number from 0.2 to 4"),
        ("rate = true\n", {}, "rate must be"),
        ("ascii = 1\n", {}, "ascii must be true or false"),
        ("keys = 3\n", {}, "keys must be a table"),
        ("not toml", {}, "console.toml"),
    ],
)  # fmt: skip
def test_reading_the_console_s_file(folder: Path, text: str, kept: dict[str, object], problem: str) -> None:
    (folder / "console.toml").write_text(text)
    read = load_configuration()
    for name in ("theme", "rate", "ascii", "mouse", "keys"):
        assert getattr(read, name) == kept.get(name, getattr(ConsoleConfiguration(), name))
    assert bool(read.problems) == bool(problem)
    assert all(problem in sentence for sentence in read.problems)
