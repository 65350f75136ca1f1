"""What would happen if: the people of a plan, simulated under one setting after the other. Pure.

Every turn is a prompt and an answer of the planned lengths; no prompt shares its beginning with another, so that a
prefix cache, which would help, helps nobody here. Pauses vary by half, answers too.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from pydantic import BaseModel, ConfigDict

from slotdeck.console.advice.calibration import Calibration
from slotdeck.console.advice.outcome import Outcome
from slotdeck.console.advice.plan import Plan
from slotdeck.console.advice.recorded import simulate
from slotdeck.console.advice.traffic import Turn, User
from slotdeck.engine.settings import LiveSettings

PAUSING_SECONDS, BUSY_SECONDS = 300.0, 90.0
"""Simulated: of people who pause, and of those who never do."""


class People(BaseModel):
    """Who asks and how much; seconds and tokens."""

    model_config = ConfigDict(frozen=True)

    users: int
    pause: float
    """From the end of an answer to the next prompt, on average."""
    prompt: int
    answer: int

    @property
    def seconds(self) -> float:
        """How long they come."""
        return max(PAUSING_SECONDS, 3 * self.pause) if self.pause else BUSY_SECONDS


class Expected(BaseModel):
    """What a simulation gave; ``None`` times had no samples."""

    model_config = ConfigDict(frozen=True)

    ttft_p95: float | None
    itl_p95: float | None
    tokens_per_second: float | None
    preemptions: int
    refused: int
    """503s, and prompts too long for the context."""
    finished: int

    @classmethod
    def of(cls, outcome: Outcome) -> Expected:
        """The numbers of a run."""
        return cls(
            ttft_p95=outcome.ttft_p95,
            itl_p95=outcome.itl_p95,
            tokens_per_second=outcome.tokens_per_second,
            preemptions=outcome.preemptions,
            refused=outcome.rejected + outcome.too_long,
            finished=outcome.finished,
        )


def people_of(plan: Plan) -> People | None:
    """The people of a plan; ``None`` while the lengths of prompt and answer are not known."""
    question, load = plan.question, plan.load
    if question.prompt is None or question.answer is None:
        return None
    pause = max(0.0, load.turn_seconds - load.generate_seconds)
    return People(users=load.users, pause=pause, prompt=question.prompt, answer=question.answer)


def expect(people: People, settings: LiveSettings, calibration: Calibration, seed: int = 1) -> Expected:
    """Simulate these people on the calibrated machine.

    Prompts that leave no room for an answer are refused, one for each user.
    """
    if people.prompt >= settings.context:
        return Expected(
            ttft_p95=None, itl_p95=None, tokens_per_second=None, preemptions=0, refused=people.users, finished=0
        )
    users = [User(f"user-{i}", _turns(people, settings.context, f"{seed}/{i}"), people.seconds)
             for i in range(people.users)]  # fmt: skip
    return Expected.of(simulate(users, settings, calibration, seed))


def _turns(people: People, context: int, seed: str) -> Iterator[Turn]:
    """Without end. An answer ends at the context, as the engine ends it."""
    rng = random.Random(seed)
    most = context - people.prompt
    think = rng.uniform(0, people.pause or 2.0)
    while True:
        answer = min(most, max(1, round(people.answer * rng.uniform(0.5, 1.5))))
        yield Turn(think, people.prompt, answer, fresh=True)
        think = people.pause * rng.uniform(0.5, 1.5)
