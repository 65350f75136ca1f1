"""The one registry of what keys do. Key handling, palette, footer, help and the README's table come from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from slotdeck.engine.settings import SETTINGS

Mode = Literal["always", "browse", "knob"]


@dataclass(frozen=True)
class Action:
    """One thing the admin can do.

    ``call`` is a method without its ``action_`` and its argument: of the page that is shown if it has one of that
    name, else of the knobs, of leaving or of the app.
    """

    call: tuple[str, str | int | None]
    keys: tuple[str, ...]
    """As Textual names them."""
    shown: str
    """As people write them."""
    label: str
    """A word for the footer; with ``_`` for spaces its name in ``[keys]`` of console.toml."""
    help: str
    group: str
    mode: Mode = "always"
    """``knob``: only while a knob is in hand; ``browse``: only while none is."""
    footer: int | None = None
    """Place in the footer; None: not there. The last places give way first on narrow terminals."""
    pages: tuple[str, ...] = ()
    """Names of the pages on which it exists; none: all. It goes before an action of all pages with the same key."""


SETTING_KEYS = {"slots": "s", "context": "c", "queue": "d", "budget": "b", "kv_tokens": "p", "mode": "m"}
"""The keys of the live settings that have one, in the order of the footer."""


def _knob(name: str, key: str, place: int) -> Action:
    setting = SETTINGS[name]
    return Action(("knob", name), (key,), key, setting.title, f"{name}: {setting.help}", "Turn a knob", footer=place)


ACTIONS: tuple[Action, ...] = (
    *(_knob(name, key, place) for place, (name, key) in enumerate(SETTING_KEYS.items(), 10)),
    Action(("settings", None), ("o",), "o", "settings", "all settings that can change now, with or without a key",
           "Turn a knob", "browse", 42),
    Action(("step", 1), ("plus", "equals_sign", "up", "right", "k"), "+ ↑", "more", "one step more",
           "Turn a knob", "knob", 13),
    Action(("step", -1), ("minus", "underscore", "down", "left", "j"), "- ↓", "less", "one step less",
           "Turn a knob", "knob", 14),
    Action(("digit", None), tuple("0123456789"), "0-9", "number", "type the number", "Turn a knob", "knob", 15),
    Action(("erase", None), ("backspace",), "backspace", "erase", "take the last digit away", "Turn a knob", "knob"),
    Action(("apply", None), ("enter",), "enter", "apply", "apply it; shown as pending until the engine confirms",
           "Turn a knob", "knob", 11),
    Action(("drop", None), ("escape",), "esc", "drop", "drop it, nothing changes", "Turn a knob", "knob", 12),
    Action(("undo", None), ("u",), "u", "undo", "take the last change back", "Turn a knob", "browse", 32),
    Action(("load", None), ("L",), "L", "load", "start or stop five simulated users", "Watch", footer=30),
    Action(("pause", None), ("space",), "space", "pause", "pause or resume the view; the engine goes on",
           "Watch", footer=31),
    Action(("move", 1), ("down", "j"), "↓ j", "down", "select the next request, or finding", "Watch", "browse"),
    Action(("move", -1), ("up", "k"), "↑ k", "up", "select the one before", "Watch", "browse"),
    Action(("page", 1), ("pagedown",), "PgDn", "page down", "a page on", "Watch", "browse"),
    Action(("page", -1), ("pageup",), "PgUp", "page up", "a page back", "Watch", "browse"),
    Action(("end", -1), ("g", "home"), "g Home", "first", "to the first", "Watch", "browse"),
    Action(("end", 1), ("G", "end"), "G End", "last", "to the last", "Watch", "browse"),
    Action(("inspect", None), ("enter",), "enter", "request",
           "the selected request's life: why it waited, why it paused", "Watch", "browse", 40, ("live", "panel")),
    Action(("filter", None), ("slash",), "/", "filter", "show only requests whose user, state or id holds a text",
           "Watch", "browse", 43, ("live",)),
    Action(("sort", -1), ("less_than_sign",), "<", "sort left", "sort the slots by the column before",
           "Watch", "browse", pages=("live",)),
    Action(("sort", 1), ("greater_than_sign",), ">", "sort right", "sort the slots by the next column",
           "Watch", "browse", pages=("live",)),
    Action(("zoom", None), ("z",), "z", "zoom", "slots, plots, timeline or events alone, in turn",
           "Watch", "browse", 44, ("live",)),
    Action(("cancel", None), ("K",), "K", "cancel", "cancel the selected request; asks first", "Watch", "browse", 45,
           ("live", "request")),
    Action(("copy", None), ("y",), "y", "copy", "copy the selected request, or the page, to the clipboard",
           "Watch", "browse"),
    Action(("rate", None), ("r",), "r", "rate", "draw 4, 2 or 1 times a second, or every other second",
           "Watch", "browse"),
    Action(("fill", None), ("enter",), "enter", "type", "type a value; an empty one is automatic again",
           "Planner", "browse", 3, ("planner",)),
    Action(("adjust", 1), ("plus", "equals_sign", "right"), "+ →", "step up", "one step more of the input",
           "Planner", "browse", 4, ("planner",)),
    Action(("adjust", -1), ("minus", "underscore", "left"), "- ←", "step down", "one step less of it",
           "Planner", "browse", 5, ("planner",)),
    Action(("advise", None), ("a",), "a", "advise", "apply what is advised to this engine; says first what follows",
           "Planner", "browse", 6, ("planner",)),
    Action(("begin", None), ("enter",), "enter", "start", "start the selected demo; asks while others are served",
           "Demo", "browse", 3, ("demo",)),
    Action(("halt", None), ("x",), "x", "end", "end the demo that runs; your settings come back",
           "Demo", "browse", 4, ("demo",)),
    Action(("simulate", None), ("w",), "w", "what if", "simulate these people under the settings now and as advised",
           "Planner", "browse", 7, ("planner",)),
    Action(("seek", -1), ("left_square_bracket",), "[", "earlier", "one recorded second back",
           "History", "browse", 3, ("history",)),
    Action(("seek", 1), ("right_square_bracket",), "]", "later", "one recorded second on",
           "History", "browse", 4, ("history",)),
    Action(("jump", 1), ("n",), "n", "next event", "to the next preemption, 503, fault or changed setting",
           "History", "browse", 5, ("history",)),
    Action(("jump", -1), ("N",), "N", "event before", "to the last one before",
           "History", "browse", 6, ("history",)),
    Action(("leap", -1), ("left",), "←", "minute back", "a minute back; ↑ ↓ ten seconds, PgUp PgDn an hour",
           "History", "browse", pages=("history",)),
    Action(("leap", 1), ("right",), "→", "minute on", "a minute on", "History", "browse", pages=("history",)),
    Action(("day", -1), ("left_curly_bracket",), "{", "day back", "a day back", "History", "browse", 7, ("history",)),
    Action(("day", 1), ("right_curly_bracket",), "}", "day on", "a day on", "History", "browse", 8, ("history",)),
    Action(("span", None), ("z",), "z", "span", "the strip below shows ten minutes, an hour or a day",
           "History", "browse", 26, ("history",)),
    Action(("export", None), ("e",), "e", "export", "write ten minutes around this as a file for `slotdeck replay`",
           "History", "browse", 27, ("history",)),
    Action(("remedy", None), ("enter",), "enter", "turn it",
           "what the selected finding would change, and what follows from it; enter again applies",
           "Doctor", "browse", 3, ("doctor",)),
    Action(("open", "live"), ("1",), "1", "live", "the Live screen", "Screens", "browse"),
    Action(("open", "planner"), ("2",), "2", "planner", "how many people fit, what to set, and why",
           "Screens", "browse", 47),
    Action(("open", "demo"), ("3",), "3", "demo", "2, 5 and 20 users in three modes side by side, and five scenes",
           "Screens", "browse", 48),
    Action(("open", "history"), ("4",), "4", "history", "the Live screen as it was, any second of it; space plays",
           "Screens", "browse", 46),
    Action(("open", "doctor"), ("5",), "5", "doctor", "what is wrong, the evidence, what to turn",
           "Screens", "browse", 41),
    Action(("close", None), ("escape",), "esc", "back", "close what was opened last; back to the Live screen",
           "Screens", "browse"),
    Action(("help", None), ("question_mark", "f1"), "? F1", "help", "this list of keys and signs",
           "Console", footer=2),
    Action(("palette", None), ("colon", "ctrl+p"), ": ctrl+p", "commands", "find a command by name",
           "Console", "browse"),
    Action(("next_theme", None), ("t",), "t", "theme", "next theme", "Console"),
    Action(("picture", None), ("f8",), "F8", "screenshot", "save the screen as SVG", "Console"),
    Action(("suspend", None), ("ctrl+z",), "ctrl+z", "suspend", "suspend the console, never the engine", "Console"),
    Action(("leave", None), ("q", "ctrl+c", "f10", "ctrl+q"), "q ctrl+c F10", "quit",
           "leave; asks whether an engine it started stops too, q q forces",
           "Console", footer=1),
)  # fmt: skip
"""Everything, in the order in which help lists it."""
