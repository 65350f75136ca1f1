"""The rows of a demonstration: each is a number of users in one mode for some seconds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from slotdeck.console.load import Kind

Who = Literal["human", "agent", "document"]
Mode = Literal["serial", "static", "continuous"]
WHO: tuple[Who, ...] = get_args(Who)
MODES: tuple[Mode, ...] = get_args(Mode)
KINDS: dict[Who, Kind] = {"human": "chat", "agent": "agent", "document": "document"}

USERS = (2, 5, 20)
MAX_USERS = 100
SECONDS = 20.0
SEED = 1
"""Default seed of the simulated people."""
SWITCH_SECONDS = 2.0
"""Approximate time between two rows."""


@dataclass(frozen=True)
class Call:
    """One scripted request of a scene. ``user`` sends it ``at`` seconds after the start. Lengths are in tokens."""

    at: float
    user: int
    prompt: int
    answer: int
    role: str = ""
    """Its name in the sentence: ``long``, ``short``, ``newcomer`` …"""


@dataclass(frozen=True)
class Row:
    """One measurement."""

    group: str
    """Rows of one group are shown side by side."""
    name: str
    """What is different within the group: the mode, or the settings of an act."""
    users: int
    mode: Mode
    seconds: float
    who: Who | None = None
    """``None`` if the requests are those of ``calls``."""
    changes: dict[str, Any] = field(default_factory=dict)
    """Settings to change in addition to the mode."""
    calls: tuple[Call, ...] = ()
    scene: str | None = None


def usual_rows(users: Iterable[int], who: Iterable[Who], modes: Iterable[Mode], seconds: float) -> list[Row]:
    """Every number of users of every kind in every mode."""
    modes = tuple(modes)
    return [
        Row(f"{count} {kind}{'s' if count > 1 else ''}", mode, count, mode, seconds, who=kind)
        for kind in who
        for count in users
        for mode in modes
    ]


def total_seconds(rows: Iterable[Row]) -> float:
    """How long it takes, approximately."""
    return sum(row.seconds + SWITCH_SECONDS for row in rows)


def describe(rows: list[Row]) -> str:
    """What will be shown, and how long it takes."""
    total = total_seconds(rows)
    length = f"about {total / 60:.0f} min" if total >= 90 else f"about {total:.0f} s"
    groups = list(dict.fromkeys(row.group for row in rows))
    modes = list(dict.fromkeys(row.mode for row in rows))
    what = ", ".join(groups)
    return f"{what}; {', '.join(modes)}; {len(rows)} row{'s' if len(rows) > 1 else ''}, {length}"
