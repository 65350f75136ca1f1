"""What the planner is asked and what it answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from slotdeck.console.advice.capacity import Capacity, Load, Memory, ModelFacts, Speed

Level = Literal["ok", "warn", "critical"]

USERS = 5
TURN_SECONDS = 90.0
"""Default time from one turn of a person to the next; people read in between."""


@dataclass(frozen=True)
class CurrentSettings:
    """The settings of the engine that is planned for. A plan keeps them unless something speaks against them."""

    slots: int | None = None
    context: int | None = None
    budget: int | None = None
    kv_tokens: int | None = None

    @property
    def overcommitted(self) -> str | None:
        """A phrase if all slots together may need more than the pool holds, else ``None``."""
        if self.slots is None or self.context is None or self.kv_tokens is None:
            return None
        need = self.slots * self.context
        if need <= self.kv_tokens:
            return None
        return (
            f"{slots_text(self.slots)} x {self.context:,} may need {need:,} tokens, but the pool holds "
            f"{self.kv_tokens:,}"
        )


@dataclass(frozen=True)
class Question:
    """Everything that the planner is asked; ``None`` means unknown."""

    model: ModelFacts
    memory: Memory
    kv_dtype: str
    users: int = USERS
    turn_seconds: float = TURN_SECONDS
    generate_seconds: float | None = None
    prompt: int | None = None
    """Tokens of everything that is sent: system prompt, documents, earlier turns."""
    answer: int | None = None
    context: int | None = None
    speed: Speed | None = None
    now: CurrentSettings = CurrentSettings()


@dataclass(frozen=True)
class SettingAdvice:
    """One setting, its value, and the reason for it."""

    name: str
    value: int
    reason: str


@dataclass(frozen=True)
class Verdict:
    """One sentence about a plan. ``key`` names the rule."""

    key: str
    level: Level
    text: str


@dataclass(frozen=True)
class Plan:
    """The planner's answer."""

    question: Question
    capacity: Capacity
    load: Load
    wanted_slots: int
    """Slots that the users need, whether or not the memory is large enough."""
    settings: tuple[SettingAdvice, ...]
    """Empty if not even the weights fit."""
    verdicts: tuple[Verdict, ...]
    assumed: tuple[str, ...] = field(default=())
    """Values that were neither given nor measured."""

    def setting(self, name: str) -> int | None:
        """The recommended value of a setting; ``None`` if there is none."""
        return next((one.value for one in self.settings if one.name == name), None)


def slots_text(number: int) -> str:
    """``1 slot``, ``4 slots``."""
    return f"{number} {'slot' if number == 1 else 'slots'}"
