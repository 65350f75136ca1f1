"""The one registry of what keys do. Bindings, command palette, footer, help and the README's table come from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from textual.binding import Binding

from console.knobs import KNOBS
from console.widgets.cells import Line, Span, exact, width
from engine.settings import SETTINGS

Mode = Literal["always", "browse", "knob"]


@dataclass(frozen=True)
class Action:
    """One thing the admin can do. ``call`` is the method of the app without ``action_`` and its argument."""

    call: tuple[str, str | int | None]
    keys: tuple[str, ...]
    """As Textual names them."""
    shown: str
    """As people write them."""
    label: str
    """A word for the footer."""
    help: str
    group: str
    mode: Mode = "always"
    """``knob``: only while a knob is in hand; ``browse``: only while none is."""
    footer: int | None = None
    """Place in the footer; None: not there. The last places give way first on narrow terminals."""


_FOOTER_WORDS = {"slots": "slots", "context": "ctx", "queue": "queue", "budget": "budget"}


def _knob(name: str, place: int) -> Action:
    setting = SETTINGS[name]
    assert setting.key is not None
    return Action(
        ("knob", name), (setting.key,), setting.key, _FOOTER_WORDS.get(name, name), f"{name}: {setting.help}",
        "Turn a knob", footer=place,
    )  # fmt: skip


ACTIONS: tuple[Action, ...] = (
    *(_knob(name, place) for place, name in enumerate(KNOBS, 3)),
    Action(("step", 1), ("plus", "equals_sign", "up", "right", "k"), "+ ↑", "more", "one step more",
           "Turn a knob", "knob", 13),
    Action(("step", -1), ("minus", "underscore", "down", "left", "j"), "- ↓", "less", "one step less",
           "Turn a knob", "knob", 14),
    Action(("digit", None), tuple("0123456789"), "0-9", "number", "type the number", "Turn a knob", "knob", 15),
    Action(("erase", None), ("backspace",), "backspace", "erase", "take the last digit away", "Turn a knob", "knob"),
    Action(("apply", None), ("enter",), "enter", "apply", "apply it; shown as pending until the engine confirms",
           "Turn a knob", "knob", 11),
    Action(("drop", None), ("escape",), "esc", "drop", "drop it, nothing changes", "Turn a knob", "knob", 12),
    Action(("undo", None), ("u",), "u", "undo", "take the last change back", "Turn a knob", "browse", 9),
    Action(("load", None), ("L",), "L", "load", "start or stop five simulated users", "Watch", footer=7),
    Action(("pause", None), ("space",), "space", "pause", "pause or resume the view; the engine goes on",
           "Watch", footer=8),
    Action(("scroll", 1), ("down", "j"), "↓ j", "down", "next slots", "Watch", "browse"),
    Action(("scroll", -1), ("up", "k"), "↑ k", "up", "slots before", "Watch", "browse"),
    Action(("page", 1), ("pagedown",), "PgDn", "page down", "a page of slots on", "Watch", "browse"),
    Action(("page", -1), ("pageup",), "PgUp", "page up", "a page of slots back", "Watch", "browse"),
    Action(("end", -1), ("g", "home"), "g Home", "first", "first slots", "Watch", "browse"),
    Action(("end", 1), ("G", "end"), "G End", "last", "last slots", "Watch", "browse"),
    Action(("help", None), ("question_mark", "f1"), "? F1", "help", "this list of keys and signs",
           "Console", footer=2),
    Action(("palette", None), ("colon", "ctrl+p"), ": ctrl+p", "commands", "find a command by name",
           "Console", "browse"),
    Action(("next_theme", None), ("t",), "t", "theme", "next theme", "Console"),
    Action(("picture", None), ("f8",), "F8", "screenshot", "save the screen as SVG", "Console"),
    Action(("suspend", None), ("ctrl+z",), "ctrl+z", "suspend", "suspend the console, never the engine", "Console"),
    Action(("leave", None), ("q", "ctrl+c", "f10", "ctrl+q"), "q ctrl+c F10", "quit",
           "quit: asks while requests run on an engine this console started; again forces", "Console", footer=1),
)  # fmt: skip
"""Everything, in the order in which help lists it."""


def action_for(key: str, *, editing: bool) -> Action | None:
    """What a key does now."""
    refused = "browse" if editing else "knob"
    return next((action for action in ACTIONS if key in action.keys and action.mode != refused), None)


def bindings() -> list[Binding]:
    """One binding for each key; the app asks :func:`action_for` what it means at that moment."""
    keys = dict.fromkeys(key for action in ACTIONS for key in action.keys)
    return [Binding(key, f"press({key!r})", show=False) for key in keys]


def _first_key(action: Action) -> str:
    return action.shown.split(" ")[0]


def footer_line(*, editing: bool, cells: int) -> Line:
    """The keys that matter now, as many as fit, in the registry's order; quit and help are the last to go."""
    mode = "knob" if editing else "browse"
    shown = [a for a in ACTIONS if a.footer is not None and a.mode in ("always", mode)]
    if editing:
        shown = [a for a in shown if a.mode == "knob"]
        shown.sort(key=lambda a: a.footer or 0)
    while shown:
        text = "  ".join(f"{_first_key(a)} {a.label}" for a in shown)
        if width(text) + 1 <= cells:
            break
        shown.remove(max(shown, key=lambda a: a.footer or 0))
    spans: list[Span] = []
    for action in shown:
        spans += [("  " if spans else " ", "text"), (_first_key(action), "key"), (f" {action.label}", "label")]
    return exact(spans, cells)


def groups() -> dict[str, list[Action]]:
    """Actions by group, in order, for help."""
    result: dict[str, list[Action]] = {}
    for action in ACTIONS:
        result.setdefault(action.group, []).append(action)
    return result


def keys_table() -> str:
    """The Markdown table that README.md holds between ``<!-- keys -->`` and ``<!-- /keys -->``."""
    rows = ["| key | what it does |", "|---|---|"]
    for group, actions in groups().items():
        rows.append(f"| **{group}** | |")
        for action in actions:
            keys = " ".join(f"`{key}`" for key in action.shown.split(" "))
            rows.append(f"| {keys} | {action.help} |")
    return "\n".join(rows)


def with_keys_table(readme: str) -> str:
    """The text of README.md with the table between its markers brought up to date."""
    before, start, rest = readme.partition("<!-- keys -->")
    _old, end, after = rest.partition("<!-- /keys -->")
    return f"{before}{start}\n{keys_table()}\n{end}{after}" if start and end else readme
