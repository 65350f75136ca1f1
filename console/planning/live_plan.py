"""The plan for the engine that runs, computed again only when something it depends on has changed."""

from __future__ import annotations

from slotdeck.console.advice.capacity import CapacityError, Memory, Speed
from slotdeck.console.advice.plan import Plan, Question
from slotdeck.console.advice.planner import make_plan
from slotdeck.console.advice.running import memory_of
from slotdeck.console.planning.form import Form
from slotdeck.engine.telemetry.frame import Frame


class LivePlan:
    """Plans for the inputs of a form and the engine of a frame."""

    def __init__(self) -> None:
        self._memory: Memory | None = None
        self._question: Question | None = None
        self._answer: Plan | str | None = None

    def update(self, form: Form, frame: Frame | None, speed: Speed | None) -> Plan | str | None:
        """The plan, or the sentence why there is none, or ``None`` if the sizes of the model are not known.

        ``speed`` was measured for this engine; ``None``: it was not measured.
        """
        question = None if frame is None else form.question(frame, self._steady_memory(frame), speed)
        if question != self._question:
            self._question, self._answer = question, None if question is None else _answer(question)
        return self._answer

    def _steady_memory(self, frame: Frame) -> Memory | None:
        """The memory of this machine, renewed only if it changed by one percent, so that digits do not flicker."""
        now, kept = memory_of(frame), self._memory
        if now is None or kept is None or now.gpu != kept.gpu or abs(now.total - kept.total) > kept.total / 100:
            self._memory = now
        return self._memory


def _answer(question: Question) -> Plan | str:
    try:
        return make_plan(question)
    except CapacityError as error:
        return str(error)
