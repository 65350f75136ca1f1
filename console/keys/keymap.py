"""Which key means what now: the registry of actions with the user's own keys put over it.

The user's keys come from ``[keys]`` in ``console.toml``: the label of an action and its key or keys. A bad entry
never stops the console: it becomes one sentence to show.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from slotdeck.console.drawing.cells import Line, Span, cell_width, exact
from slotdeck.console.keys.actions import ACTIONS, LIVE, Action

_SHOWN = {
    "question_mark": "?", "colon": ":", "slash": "/", "plus": "+", "minus": "-", "space": "space", "escape": "esc",
    "less_than_sign": "<", "greater_than_sign": ">", "left_square_bracket": "[", "right_square_bracket": "]",
    "left_curly_bracket": "{", "right_curly_bracket": "}",
    "full_stop": ".", "comma": ",", "equals_sign": "=", "underscore": "_", "semicolon": ";",
    "up": "↑", "down": "↓", "left": "←", "right": "→", "pageup": "PgUp", "pagedown": "PgDn",
}  # fmt: skip
"""Keys whose name in Textual is not what people write. Function keys are written in capitals."""
_NAMES: dict[str, str] = {shown: name for name, shown in _SHOWN.items()}


class Keymap:
    """The actions with the keys in force. ``problems`` holds a sentence for each entry that cannot be used."""

    def __init__(self, own: Mapping[str, Any] | None = None) -> None:
        self.problems: list[str] = []
        self.actions = list(ACTIONS)
        for label, value in (own or {}).items():
            self._override(label, value)

    def _override(self, label: str, value: Any) -> None:
        at = next((i for i, action in enumerate(self.actions) if _id(action) == label), None)
        keys: Any = [value] if isinstance(value, str) else value
        if at is None:
            self.problems.append(f"keys: no action is called {label!r}; `?` lists them")
            return
        if not isinstance(keys, list) or not keys or not all(isinstance(key, str) and key for key in keys):
            self.problems.append(f"keys: {label} needs a key or a list of keys")
            return
        named: tuple[str, ...] = tuple(_NAMES.get(str(key), str(key)) for key in keys)
        old = self.actions[at]
        for key in named:
            other = next((a for a in self.actions if a is not old and key in a.keys and _meet(a, old)), None)
            if other is not None:
                self.problems.append(f"keys: {label} cannot have {key!r}, which is {_id(other)}")
                return
        self.actions[at] = replace(old, keys=named, shown=" ".join(_shown(key) for key in named))

    def action_for(self, key: str, *, editing: bool, page: str = LIVE) -> Action | None:
        """What a key does now. An action of this page takes precedence over one of all pages."""
        refused = "browsing" if editing else "editing"
        found = [a for a in self.actions if key in a.keys and a.mode != refused and (not a.pages or page in a.pages)]
        return max(found, key=lambda action: bool(action.pages), default=None)

    def footer_line(self, *, editing: bool, width: int, page: str = LIVE) -> Line:
        """As many of the current keys as fit, in the order of the registry. Quit and help are dropped last."""
        if editing:
            shown = [a for a in self.actions if a.footer is not None and a.mode == "editing"]
            shown.sort(key=lambda a: a.footer or 0)
        else:
            shown = [
                a
                for a in self.actions
                if a.footer is not None and a.mode != "editing" and (not a.pages or page in a.pages)
            ]
        while shown:
            text = "  ".join(f"{_first_key(a)} {a.label}" for a in shown)
            if cell_width(text) + 1 <= width:
                break
            shown.remove(max(shown, key=lambda a: a.footer or 0))
        spans: list[Span] = []
        for action in shown:
            spans += [("  " if spans else " ", "text"), (_first_key(action), "key"), (f" {action.label}", "label")]
        return exact(spans, width)

    def groups(self) -> dict[str, list[Action]]:
        """The actions by group, in the order of help."""
        result: dict[str, list[Action]] = {}
        for action in self.actions:
            result.setdefault(action.group, []).append(action)
        return result


def _id(action: Action) -> str:
    """The name of the action in ``[keys]``."""
    return action.label.replace(" ", "_")


def _meet(one: Action, other: Action) -> bool:
    """True if both actions can be available at the same time."""
    modes = {one.mode, other.mode}
    pages = not one.pages or not other.pages or set(one.pages) & set(other.pages)
    return modes != {"browsing", "editing"} and bool(pages) and bool(one.pages) == bool(other.pages)


def _first_key(action: Action) -> str:
    return action.shown.split(" ")[0]


def _shown(key: str) -> str:
    return _SHOWN.get(key, key.upper() if key[:1] == "f" and key[1:].isdigit() else key)
