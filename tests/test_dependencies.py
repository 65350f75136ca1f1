"""The dependencies in pyproject.toml are exactly the packages that the code imports."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
OURS = {"slotdeck", "tests"}
NEVER_IMPORTED = {
    "accelerate",  # transformers needs it to read GGUF files
    "import-linter", "mypy", "ruff", "types-psutil",
    "pytest-asyncio", "pytest-textual-snapshot", "pytest-timeout", "pytest-xdist",
}  # fmt: skip
"""Tools, plugins of pytest, and what other packages need at run time."""
OF_PEERS = {"openvino_genai", "xllamacpp"}
"""Modules of the servers that ``tests/peers`` compares with; each has an environment of its own."""


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def declared(requirements: Iterable[str]) -> set[str]:
    """The names in a list of requirements."""
    return {normalized(re.split(r"[<>=!~\[; ]", requirement, maxsplit=1)[0]) for requirement in requirements}


def imported(*folders: str) -> set[str]:
    """The distributions that the Python files of these folders import anywhere."""
    modules: set[str] = set()
    for folder in folders:
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.Import):
                    modules |= {name.name.partition(".")[0] for name in node.names}
                elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                    modules.add(node.module.partition(".")[0])
    known = packages_distributions()
    others = modules - OURS - OF_PEERS - set(sys.stdlib_module_names)
    return {normalized(known.get(module, [module])[0]) for module in others}


def test_the_program_needs_what_it_imports() -> None:
    assert declared(PROJECT["dependencies"]) == imported("engine", "console", "themes")


def test_the_tests_need_what_they_import() -> None:
    extras = PROJECT["optional-dependencies"]
    own = declared([*extras["test"], *extras["screenshots"]])
    assert imported("tests") - declared(PROJECT["dependencies"]) == own - NEVER_IMPORTED
