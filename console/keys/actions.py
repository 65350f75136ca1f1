"""The one registry of what keys do. Key handling, palette, footer, help and the table of keys come from it.

A :class:`Command` names what is done. Whoever does it has a table from commands to methods (:data:`Handlers`): a page
in ``Page.handlers``, and the console as a whole in ``console/services.py``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Literal

from slotdeck.engine.settings import SETTINGS

LIVE = "live"
"""Name of the page that is shown when no other page is open."""

Mode = Literal["always", "browsing", "editing"]


class Command(Enum):
    """What a key can ask for."""

    EDIT_SETTING = auto()
    TOGGLE_SETTINGS = auto()
    STEP = auto()
    DIGIT = auto()
    ERASE = auto()
    APPLY = auto()
    DROP = auto()
    UNDO = auto()
    TOGGLE_LOAD = auto()
    PAUSE = auto()
    MOVE = auto()
    PAGE = auto()
    END = auto()
    INSPECT = auto()
    FILTER = auto()
    SORT = auto()
    ZOOM = auto()
    CANCEL = auto()
    COPY = auto()
    REFRESH_RATE = auto()
    TYPE_VALUE = auto()
    ADJUST = auto()
    APPLY_ADVICE = auto()
    START_DEMO = auto()
    STOP_DEMO = auto()
    SIMULATE = auto()
    SEEK = auto()
    JUMP = auto()
    LEAP = auto()
    DAY = auto()
    SPAN = auto()
    EXPORT = auto()
    APPLY_REMEDY = auto()
    OPEN_PAGE = auto()
    CLOSE = auto()
    HELP = auto()
    PALETTE = auto()
    NEXT_THEME = auto()
    SCREENSHOT = auto()
    SUSPEND = auto()
    QUIT = auto()


Handlers = Mapping[Command, Callable[..., Awaitable[None] | None]]
"""The methods that carry commands out. A command with an argument passes it to the method."""


@dataclass(frozen=True)
class Action:
    """One thing that an admin can do, and the keys that do it."""

    command: Command
    argument: str | int | None
    """Passed to the handler. For :attr:`Command.DIGIT` it is the digit that was pressed."""
    keys: tuple[str, ...]
    """The keys as Textual names them."""
    shown: str
    """The keys as people write them."""
    label: str
    """A word for the footer. With ``_`` for spaces it is the action's name in ``[keys]`` of console.toml."""
    help: str
    group: str
    mode: Mode = "always"
    """``editing``: only while a setting is being edited. ``browsing``: only while none is."""
    footer: int | None = None
    """Place in the footer; None: not in the footer. On narrow terminals the highest places are dropped first."""
    pages: tuple[str, ...] = ()
    """The pages that have this action; empty: all pages. It takes precedence over actions of all pages."""


SETTING_KEYS = {"slots": "s", "context": "c", "queue": "d", "budget": "b", "kv_tokens": "p", "mode": "m"}
"""The keys of the live settings that have one, in the order of the footer."""


def _edit(name: str, key: str, place: int) -> Action:
    setting = SETTINGS[name]
    help = f"{name}: {setting.help}"
    return Action(Command.EDIT_SETTING, name, (key,), key, setting.title, help, "Settings", footer=place)


ACTIONS: tuple[Action, ...] = (
    *(_edit(name, key, place) for place, (name, key) in enumerate(SETTING_KEYS.items(), 10)),
    Action(Command.TOGGLE_SETTINGS, None, ("o",), "o", "settings",
           "open or close the list of all settings that can be changed now", "Settings", "browsing", 42),
    Action(Command.STEP, 1, ("plus", "equals_sign", "up", "right", "k"), "+ ↑", "more",
           "one step up", "Settings", "editing", 13),
    Action(Command.STEP, -1, ("minus", "underscore", "down", "left", "j"), "- ↓", "less",
           "one step down", "Settings", "editing", 14),
    Action(Command.DIGIT, None, tuple("0123456789"), "0-9", "number",
           "type a number", "Settings", "editing", 15),
    Action(Command.ERASE, None, ("backspace",), "backspace", "erase",
           "delete the last digit", "Settings", "editing"),
    Action(Command.APPLY, None, ("enter",), "enter", "apply",
           "apply the value; it is shown as pending until the engine confirms it", "Settings", "editing", 11),
    Action(Command.DROP, None, ("escape",), "esc", "drop",
           "drop the value; nothing changes", "Settings", "editing", 12),
    Action(Command.UNDO, None, ("u",), "u", "undo",
           "take the last change back", "Settings", "browsing", 32),
    Action(Command.TOGGLE_LOAD, None, ("L",), "L", "load",
           "start or stop five simulated users", "Watch", footer=30),
    Action(Command.PAUSE, None, ("space",), "space", "pause",
           "pause or resume the view; the engine goes on", "Watch", footer=31),
    Action(Command.MOVE, 1, ("down", "j"), "↓ j", "down",
           "select the next request, input or finding", "Watch", "browsing"),
    Action(Command.MOVE, -1, ("up", "k"), "↑ k", "up",
           "select the previous one", "Watch", "browsing"),
    Action(Command.PAGE, 1, ("pagedown",), "PgDn", "page down",
           "a page down", "Watch", "browsing"),
    Action(Command.PAGE, -1, ("pageup",), "PgUp", "page up",
           "a page up", "Watch", "browsing"),
    Action(Command.END, -1, ("g", "home"), "g Home", "first",
           "select the first one", "Watch", "browsing"),
    Action(Command.END, 1, ("G", "end"), "G End", "last",
           "select the last one", "Watch", "browsing"),
    Action(Command.INSPECT, None, ("enter",), "enter", "request",
           "show the selected request: why it waited, why it paused", "Watch", "browsing", 40, ("live", "panel")),
    Action(Command.FILTER, None, ("slash",), "/", "filter",
           "list only requests whose user, state or id contains a text", "Watch", "browsing", 43, ("live",)),
    Action(Command.SORT, -1, ("less_than_sign",), "<", "sort left",
           "sort the slots by the previous column", "Watch", "browsing", pages=("live",)),
    Action(Command.SORT, 1, ("greater_than_sign",), ">", "sort right",
           "sort the slots by the next column", "Watch", "browsing", pages=("live",)),
    Action(Command.ZOOM, None, ("z",), "z", "zoom",
           "show only the slots, the plots, the timeline or the events", "Watch", "browsing", 44, ("live",)),
    Action(Command.CANCEL, None, ("K",), "K", "cancel",
           "cancel the selected request, after asking", "Watch", "browsing", 45, ("live", "request")),
    Action(Command.COPY, None, ("y",), "y", "copy",
           "copy the selected request, or the page, to the clipboard", "Watch", "browsing"),
    Action(Command.REFRESH_RATE, None, ("r",), "r", "rate",
           "draw 4, 2 or 1 times a second, or every 2 s", "Watch", "browsing"),
    Action(Command.TYPE_VALUE, None, ("enter",), "enter", "type",
           "type a value; an empty value is automatic again", "Planner", "browsing", 3, ("planner",)),
    Action(Command.ADJUST, 1, ("plus", "equals_sign", "right"), "+ →", "step up",
           "increase the input by one step", "Planner", "browsing", 4, ("planner",)),
    Action(Command.ADJUST, -1, ("minus", "underscore", "left"), "- ←", "step down",
           "decrease the input by one step", "Planner", "browsing", 5, ("planner",)),
    Action(Command.APPLY_ADVICE, None, ("a",), "a", "advise",
           "apply the advised settings here; shows their effect first", "Planner", "browsing", 6, ("planner",)),
    Action(Command.SIMULATE, None, ("w",), "w", "what if",
           "simulate these people under the current and the advised settings", "Planner", "browsing", 7, ("planner",)),
    Action(Command.START_DEMO, None, ("enter",), "enter", "start",
           "start the selected demo; asks first if others are being served", "Demo", "browsing", 3, ("demo",)),
    Action(Command.STOP_DEMO, None, ("x",), "x", "end",
           "end the running demo; your settings are restored", "Demo", "browsing", 4, ("demo",)),
    Action(Command.SEEK, -1, ("left_square_bracket",), "[", "earlier",
           "one recorded second back", "History", "browsing", 3, ("history",)),
    Action(Command.SEEK, 1, ("right_square_bracket",), "]", "later",
           "one recorded second forward", "History", "browsing", 4, ("history",)),
    Action(Command.JUMP, 1, ("n",), "n", "next event",
           "to the next preemption, 503, fault or changed setting", "History", "browsing", 5, ("history",)),
    Action(Command.JUMP, -1, ("N",), "N", "event before",
           "to the previous one", "History", "browsing", 6, ("history",)),
    Action(Command.LEAP, -1, ("left",), "←", "minute back",
           "a minute back; ↑ ↓ move ten seconds, PgUp PgDn an hour", "History", "browsing", pages=("history",)),
    Action(Command.LEAP, 1, ("right",), "→", "minute on",
           "a minute forward", "History", "browsing", pages=("history",)),
    Action(Command.DAY, -1, ("left_curly_bracket",), "{", "day back",
           "a day back", "History", "browsing", 7, ("history",)),
    Action(Command.DAY, 1, ("right_curly_bracket",), "}", "day on",
           "a day forward", "History", "browsing", 8, ("history",)),
    Action(Command.SPAN, None, ("z",), "z", "span",
           "show ten minutes, an hour or a day on the strip below", "History", "browsing", 26, ("history",)),
    Action(Command.EXPORT, None, ("e",), "e", "export",
           "write ten minutes around this to a file for `slotdeck replay`", "History", "browsing", 27, ("history",)),
    Action(Command.APPLY_REMEDY, None, ("enter",), "enter", "change",
           "show a change that may help, and its effect; enter applies it", "Doctor", "browsing", 3, ("doctor",)),
    Action(Command.OPEN_PAGE, "live", ("1",), "1", "live",
           "who is served, what is full, who waits", "Pages", "browsing"),
    Action(Command.OPEN_PAGE, "planner", ("2",), "2", "planner",
           "how many people fit, what to set, and why", "Pages", "browsing", 47),
    Action(Command.OPEN_PAGE, "demo", ("3",), "3", "demo",
           "2, 5 and 20 users in three modes side by side, and five scenes", "Pages", "browsing", 48),
    Action(Command.OPEN_PAGE, "history", ("4",), "4", "history",
           "the Live page at any recorded second; space plays", "Pages", "browsing", 46),
    Action(Command.OPEN_PAGE, "doctor", ("5",), "5", "doctor",
           "what is wrong, the evidence, what to change", "Pages", "browsing", 41),
    Action(Command.CLOSE, None, ("escape",), "esc", "back",
           "close what was opened last", "Pages", "browsing"),
    Action(Command.HELP, None, ("question_mark", "f1"), "? F1", "help",
           "this list of keys and signs", "Console", footer=2),
    Action(Command.PALETTE, None, ("colon", "ctrl+p"), ": ctrl+p", "commands",
           "find a command by name", "Console", "browsing"),
    Action(Command.NEXT_THEME, None, ("t",), "t", "theme",
           "next theme", "Console"),
    Action(Command.SCREENSHOT, None, ("f8",), "F8", "screenshot",
           "save the screen as SVG", "Console"),
    Action(Command.SUSPEND, None, ("ctrl+z",), "ctrl+z", "suspend",
           "suspend the console; the engine goes on", "Console"),
    Action(Command.QUIT, None, ("q", "ctrl+c", "f10", "ctrl+q"), "q ctrl+c F10", "quit",
           "quit; asks whether to stop an engine that it started, q q forces", "Console", footer=1),
)  # fmt: skip
"""All actions, in the order in which help lists them."""
