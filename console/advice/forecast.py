"""A forecast for the users of a plan: they are simulated under given settings.

Every turn is a prompt and an answer of the planned lengths. No prompt shares its beginning with another one, so the
prefix cache, which would help real users, has no effect here. Pauses and answers vary by half.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from pydantic import BaseModel, ConfigDict

from slotdeck.console.advice.calibration import Calibration
from slotdeck.console.advice.plan import Plan
from slotdeck.console.advice.recorded import simulate
from slotdeck.console.advice.simulation_result import SimulationResult
from slotdeck.console.advice.traffic import Turn, User
from slotdeck.engine.settings import LiveSettings

PAUSING_SECONDS, BUSY_SECONDS = 300.0, 90.0
"""Simulated time for users who pause, and for users who never do."""


class People(BaseModel):
    """The users and how much they ask. Times are in seconds, lengths in tokens."""

    model_config = ConfigDict(frozen=True)

    users: int
    pause: float
    """Average time from the end of an answer to the next prompt."""
    prompt: int
    answer: int

    @property
    def seconds(self) -> float:
        """How long they are simulated."""
        return max(PAUSING_SECONDS, 3 * self.pause) if self.pause else BUSY_SECONDS


class ServiceForecast(BaseModel):
    """What these people would get. Times are in seconds, ``None`` without samples."""

    model_config = ConfigDict(frozen=True)

    ttft_p95: float | None
    itl_p95: float | None
    tokens_per_second: float | None
    preemptions: int
    refused: int
    """Refusals with 503, and prompts that are too long for the context."""
    finished: int

    @classmethod
    def of(cls, result: SimulationResult) -> ServiceForecast:
        """The numbers of one simulation."""
        return cls(
            ttft_p95=result.ttft_p95,
            itl_p95=result.itl_p95,
            tokens_per_second=result.tokens_per_second,
            preemptions=result.preemptions,
            refused=result.rejected + result.too_long,
            finished=result.finished,
        )


def people_of(plan: Plan) -> People | None:
    """The users of a plan; ``None`` if the lengths of prompt and answer are unknown."""
    question, load = plan.question, plan.load
    if question.prompt is None or question.answer is None:
        return None
    pause = max(0.0, load.turn_seconds - load.generate_seconds)
    return People(users=load.users, pause=pause, prompt=question.prompt, answer=question.answer)


def forecast_service(
    people: People, settings: LiveSettings, calibration: Calibration, seed: int = 1
) -> ServiceForecast:
    """Simulate these people on the calibrated machine.

    If prompts leave no room for an answer in the context, one prompt of each user is refused.
    """
    if people.prompt >= settings.context:
        return ServiceForecast(
            ttft_p95=None, itl_p95=None, tokens_per_second=None, preemptions=0, refused=people.users, finished=0
        )
    users = [
        User(f"user-{number}", _turns(people, settings.context, f"{seed}/{number}"), people.seconds)
        for number in range(people.users)
    ]
    return ServiceForecast.of(simulate(users, settings, calibration, seed))


def _turns(people: People, context: int, seed: str) -> Iterator[Turn]:
    """The turns of one user, without end. An answer ends at the context, as in the engine."""
    rng = random.Random(seed)
    max_answer = context - people.prompt
    think = rng.uniform(0, people.pause or 2.0)
    while True:
        answer = min(max_answer, max(1, round(people.answer * rng.uniform(0.5, 1.5))))
        yield Turn(think, people.prompt, answer, fresh=True)
        think = people.pause * rng.uniform(0.5, 1.5)
