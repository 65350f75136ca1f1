"""What a planner is asked and what it answers. Numbers and sentences, no rules."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from slotdeck.console.advice.capacity import Capacity, Load, Memory, ModelFacts, Speed

Level = Literal["ok", "warn", "critical"]

USERS = 5
TURN_SECONDS = 90.0
"""Between the turns of a person who reads, when nobody says otherwise."""


@dataclass(frozen=True)
class Now:
    """The settings of the engine that is planned for: what nothing speaks against stays as it is."""

    slots: int | None = None
    context: int | None = None
    budget: int | None = None
    kv_tokens: int | None = None

    @property
    def overcommitted(self) -> str | None:
        """How the slots promise more than the pool holds, in words; ``None`` if they do not."""
        if self.slots is None or self.context is None or self.kv_tokens is None:
            return None
        need = self.slots * self.context
        if need <= self.kv_tokens:
            return None
        return f"{slots_words(self.slots)} x {self.context:,} = {need:,} tokens, the pool holds {self.kv_tokens:,}"


@dataclass(frozen=True)
class Question:
    """All that is asked of the planner; ``None`` is not known."""

    model: ModelFacts
    memory: Memory
    kv_dtype: str
    users: int = USERS
    turn_seconds: float = TURN_SECONDS
    generate_seconds: float | None = None
    prompt: int | None = None
    """Tokens, everything that is sent: system prompt, documents, earlier turns."""
    answer: int | None = None
    context: int | None = None
    speed: Speed | None = None
    now: Now = Now()


@dataclass(frozen=True)
class Advised:
    """One setting, its value, and why in one sentence."""

    name: str
    value: int
    reason: str


@dataclass(frozen=True)
class Verdict:
    """One thing to know, in words. ``key`` names the rule."""

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
    """What the people would need, whatever the memory holds."""
    settings: tuple[Advised, ...]
    """Empty when not even the weights fit."""
    verdicts: tuple[Verdict, ...]
    assumed: tuple[str, ...] = field(default=())
    """What was neither given nor measured."""

    def setting(self, name: str) -> int | None:
        """The value advised for a setting; ``None`` if there is none."""
        return next((one.value for one in self.settings if one.name == name), None)


def slots_words(number: int) -> str:
    """``1 slot``, ``4 slots``."""
    return f"{number} {'slot' if number == 1 else 'slots'}"
