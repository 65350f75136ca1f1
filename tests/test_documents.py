"""The documentation agrees with the code: generated tables, links, commands, and the length of README."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from slotdeck.console.cli.main import app as command_line
from slotdeck.console.keys.keymap import Keymap
from slotdeck.console.terminal.configuration import console_file, load_configuration
from slotdeck.console.terminal.themes import load_themes
from tests.documents import ROOT, TABLES, updated

PAGES = sorted(
    path for path in ROOT.rglob("*.md") if not {".venv", "node_modules", "mutants"} & set(path.relative_to(ROOT).parts)
)
MAX_README_WORDS = 900


def names(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.name)
def test_generated_tables_are_up_to_date(path: Path) -> None:
    name, table = TABLES[path]
    text = path.read_text("utf-8")
    assert updated(text, name, table()) == text, "run `python -m tests.documents`"


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").split()) <= MAX_README_WORDS


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text("utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_the_example_of_console_toml_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guide = (ROOT / "console" / "GUIDE.md").read_text("utf-8")
    (example,) = re.findall(r"```toml\n(.*?)```", guide, re.DOTALL)
    monkeypatch.setenv("SLOTDECK_CONFIG", str(tmp_path / "config.toml"))
    console_file().write_text(example, "utf-8")
    configuration = load_configuration()
    assert configuration.problems == ()
    assert configuration.theme in load_themes()[0]
    assert Keymap(configuration.keys).problems == []


def commands() -> set[str]:
    groups = {group.name for group in command_line.registered_groups}
    own = {
        command.name or command.callback.__name__ for command in command_line.registered_commands if command.callback
    }
    return {name for name in groups | own if name}


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_commands_exist(page: Path) -> None:
    text = page.read_text("utf-8")
    for command in re.findall(r"(?:`|\.venv/bin/|^)slotdeck ([a-z][a-z-]*)\b", text, re.MULTILINE):
        assert command in commands(), command
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    for target in re.findall(r"(?:`|^)make ([a-z-]+)", text, re.MULTILINE):
        assert target in targets, target


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_modules_and_files_that_are_named_exist(page: Path) -> None:
    text = page.read_text("utf-8")
    for module in re.findall(r"python -m (tests(?:\.[a-z_0-9]+)+)", text):
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), module
    for name in re.findall(r"`((?:engine|console|tests|themes|screenshots)/[a-zA-Z0-9_./-]+)`", text):
        assert (ROOT / name).exists(), name
