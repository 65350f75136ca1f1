"""``python -m tests.documents``: bring the generated tables of the guides up to date.

A table stands between ``<!-- NAME -->`` and ``<!-- /NAME -->``: the keys in ``console/GUIDE.md``, from the registry of
actions, and the settings in ``engine/API.md``, from the table of settings. ``tests/test_documents.py`` checks both.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from slotdeck.console.keys.keymap import Keymap
from slotdeck.engine.settings import SETTINGS, Setting

ROOT = Path(__file__).parents[1]


def keys_table() -> str:
    """Every key of the console by group, as Markdown."""
    rows = ["| key | what it does |", "|---|---|"]
    for group, actions in Keymap().groups().items():
        rows.append(f"| **{group}** | |")
        for action in actions:
            keys = " ".join(f"`{key}`" for key in action.shown.split(" "))
            rows.append(f"| {keys} | {action.help} |")
    return "\n".join(rows)


def settings_table() -> str:
    """Every setting with its values and its default, as Markdown."""
    rows = ["| setting | live | values | default | meaning |", "|---|---|---|---|---|"]
    for setting in SETTINGS.values():
        live = "yes" if setting.live else ""
        rows.append(f"| `{setting.name}` | {live} | {_values(setting)} | {_default(setting)} | {setting.help} |")
    return "\n".join(rows)


def _values(setting: Setting) -> str:
    if setting.choices:
        return ", ".join(setting.choices)
    if setting.minimum is None or setting.maximum is None:
        return "–"
    if setting.unit == "bytes":
        return f"{_amount(setting.minimum, setting)} to {_amount(setting.maximum, setting)}"
    return f"{_amount(setting.minimum, setting)} to {_amount(setting.maximum, setting)} {setting.unit}".strip()


def _default(setting: Setting) -> str:
    if isinstance(setting.default, bool):
        return "on" if setting.default else "off"
    if isinstance(setting.default, int | float):
        return _amount(setting.default, setting)
    return str(setting.default or "–")


def _amount(value: float, setting: Setting) -> str:
    """A number as people write it: bytes in the largest unit that fits."""
    if setting.unit == "bytes":
        for unit, size in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
            if value >= size and value % size == 0:
                return f"{value // size:g} {unit}"
        return f"{value:g} bytes"
    return str(int(value)) if value == int(value) else f"{value:g}"


TABLES: dict[Path, tuple[str, Callable[[], str]]] = {
    ROOT / "console" / "GUIDE.md": ("keys", keys_table),
    ROOT / "engine" / "API.md": ("settings", settings_table),
}


def updated(text: str, name: str, table: str) -> str:
    """``text`` with this table between its marks. Raises ValueError if a mark is missing."""
    before, start, rest = text.partition(f"<!-- {name} -->")
    _old, end, after = rest.partition(f"<!-- /{name} -->")
    if not start or not end:
        raise ValueError(f"the marks of the table of {name} are missing")
    return f"{before}{start}\n{table}\n{end}{after}"


def main() -> None:
    for path, (name, table) in TABLES.items():
        path.write_text(updated(path.read_text("utf-8"), name, table()), "utf-8")


if __name__ == "__main__":
    main()
