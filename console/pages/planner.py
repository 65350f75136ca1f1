"""The Planner page: how many people fit, what to set and why, and one key that applies it to the running engine."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from slotdeck.console.advice.capacity import CapacityError, Memory, Speed
from slotdeck.console.advice.forecast import People, ServiceForecast, people_of
from slotdeck.console.advice.plan import Plan
from slotdeck.console.advice.planner import make_plan
from slotdeck.console.advice.running import kv_dtype_of, memory_of, settings_of
from slotdeck.console.drawing.cells import Line, blank, clean, exact, wrap
from slotdeck.console.pages.page import Chrome, Page, banner, framed, heading
from slotdeck.console.planning.form import FIELDS, Form, by_name
from slotdeck.console.planning.measured_speed import calibration_of_engine, speed_of_engine
from slotdeck.console.processes.simulation_worker import Job, what_if
from slotdeck.console.sections.header import title_line
from slotdeck.console.sections.plan import fact_lines, setting_lines, upper_lines, verdict_lines, what_if_lines
from slotdeck.console.session.prompts import Typed
from slotdeck.console.state.store import View
from slotdeck.engine.settings import LiveSettings
from slotdeck.engine.telemetry.frame import EngineInfo, Frame

if TYPE_CHECKING:
    from slotdeck.console.app import ConsoleApp

MIN_ROWS = 4
"""Below the inputs; on lower terminals they scroll with the rest."""
UNKNOWN_MODEL = (
    "The sizes of this model are not known here. `slotdeck plan --model-config FILE --gpu 24GiB` plans for any model "
    "and machine without an engine."
)


class PlannerPage(Page):
    """Computes anew with each frame and each key; the inputs stay as long as the console runs."""

    name = "planner"

    def __init__(self, app: ConsoleApp) -> None:
        super().__init__(app)
        self.form = Form()
        self.place = 0
        """Of the input under the cursor."""
        self._offset = 0
        self._rows = 1
        self._follow = False
        """The cursor moved and must be in sight."""
        self._memory: Memory | None = None
        self._speed: Speed | None = None
        self._looked_for: EngineInfo | None = None
        self._job: Job | None = None
        self._expected: list[ServiceForecast] | None = None
        """What came of the job; None while it runs."""
        self._hint = ""
        """What this page said last on the status line."""

    def compose(self, view: View, chrome: Chrome, cells: int, rows: int) -> list[Line]:
        note = f"{by_name(self._field).label}: {by_name(self._field).help}"
        top = [title_line(view, cells), heading("Planner", note, cells), banner(view, chrome, cells)]
        return framed(top, lambda left: self._body(view, cells, left), chrome, cells, rows)

    def opened(self, argument: str | int | None) -> None:
        """Look whether the speed was measured meanwhile."""
        self._looked_for = None

    def closed(self) -> None:
        """A hint about this page says nothing on another one."""
        if self._hint and self.app.knobs.message == self._hint:
            self.app.say("")
        self._hint = ""

    def _say(self, hint: str) -> None:
        self._hint = hint
        self.app.say(hint, failed=True)

    def _look_for_speed(self, engine: EngineInfo) -> None:
        """Read the calibration of an engine that was not looked for yet; the page is drawn again when it is there."""
        if engine == self._looked_for:
            return
        self._looked_for = engine

        async def look() -> None:
            speed = await asyncio.to_thread(speed_of_engine, engine)
            if engine == self._looked_for and speed != self._speed:
                self._speed = speed
                self.redraw()

        self.app.run_worker(look(), group="planner", exit_on_error=False)

    def _body(self, view: View, cells: int, left: int) -> list[Line]:
        if view.frame is not None:
            self._look_for_speed(view.frame.engine)
        made = self._plan(view.frame)
        if made is None or isinstance(made, str):
            text = made or ("no engine is connected" if view.frame is None else UNKNOWN_MODEL)
            return [exact([(f" {row}", "text")], cells) for row in wrap(clean(text), cells - 2, 4)]
        upper = upper_lines(made, self.form, self.place, cells)
        parts = [
            fact_lines(made, cells),
            setting_lines(made, view.limits, cells),
            self._what_if(made, view.frame, cells),
            verdict_lines(made, cells),
        ]
        room = left - len(upper) - sum(map(len, parts)) - sum(map(bool, parts))
        air = [blank(cells)] if room >= 0 else []
        advice = [line for part in parts if part for line in (*air, *part)]
        fixed, scrolled = (upper, advice) if left - len(upper) >= MIN_ROWS else ([], [*upper, *advice])
        self._rows = max(1, left - len(fixed))
        if self._follow and not fixed:  # the cursor is in what scrolls, under the heading of the inputs
            self._offset = min(max(self._offset, self.place + 3 - self._rows), self.place + 1)
        self._follow = False
        self._offset = max(0, min(self._offset, len(scrolled) - self._rows))
        lines = scrolled[self._offset : self._offset + self._rows]
        hidden = len(scrolled) - self._offset - len(lines)
        if hidden and lines:
            lines[-1] = exact([(f" ↓ {hidden + 1} more lines", "key"), ("  PgDn PgUp", "label")], cells)
        return [*fixed, *lines]

    def _what_if(self, made: Plan, frame: Frame | None, cells: int) -> list[Line]:
        """What was simulated, as long as it is about what is planned now."""
        if self._job is None or frame is None or self._pair(made, frame) != (self._job.people, self._job.settings):
            return []
        if self._expected is None:
            return [exact([(" simulating …", "label")], cells)]
        return what_if_lines(self._expected, cells)

    def _pair(self, made: Plan, frame: Frame) -> tuple[People | None, tuple[LiveSettings, ...]]:
        """The people, and the settings in force and advised."""
        if not made.settings:
            return people_of(made), ()
        now = settings_of(frame)
        return people_of(made), (now, now.model_copy(update={one.name: one.value for one in made.settings}))

    def _plan(self, frame: Frame | None) -> Plan | str | None:
        """The plan for the engine of a frame, why there is none, or None if nothing is known of its model."""
        question = None if frame is None else self.form.question(frame, self._steady_memory(frame), self._speed)
        if question is None:
            return None
        try:
            return make_plan(question)
        except CapacityError as error:
            return str(error)

    def _steady_memory(self, frame: Frame) -> Memory | None:
        """The memory of this machine, renewed when it has changed by a percent: digits that never rest help nobody."""
        now, kept = memory_of(frame), self._memory
        if now is None or kept is None or now.gpu != kept.gpu or abs(now.total - kept.total) > kept.total / 100:
            self._memory = now
        return self._memory

    @property
    def _field(self) -> str:
        return FIELDS[self.place].name

    def copied(self) -> str | None:
        """The plan as `slotdeck plan` prints it."""
        from slotdeck.console.advice.plan_report import plan_text

        made = self._plan(self.app.store.view.frame)
        return "\n".join(plan_text(made)) if isinstance(made, Plan) else None

    # ------------------------------------------------------------------ keys

    def action_move(self, rows: int) -> None:
        """To another input."""
        self.place = max(0, min(self.place + rows, len(FIELDS) - 1))
        self._follow = True

    def action_end(self, direction: int) -> None:
        """To the first or the last input."""
        self.action_move(direction * len(FIELDS))

    def action_page(self, direction: int) -> None:
        """Scroll what to set and to know."""
        self._offset = max(0, self._offset + direction * max(1, self._rows // 2))

    def action_adjust(self, direction: int) -> None:
        """One step more or less."""
        made = self._plan(self.app.store.view.frame)
        if isinstance(made, Plan):
            self.form = self.form.stepped(self._field, direction, made)

    def action_fill(self) -> None:
        """Type a value."""
        name = self._field

        def done(text: str) -> str | None:
            self.form, problem = self.form.typed(name, text)
            return problem

        self.app.prompt = Typed(by_name(name).label, f"{by_name(name).help}; enter keeps it, esc drops", done)

    def action_advise(self) -> None:
        """Offer the advised settings to the engine that runs."""
        frame = self.app.store.view.frame
        made = self._plan(frame)
        if not isinstance(made, Plan) or frame is None:
            self._say("there is no plan for this engine")
        elif (reason := self._not_here(made, frame)) is not None:
            self._say(reason)
        elif not made.settings:
            self._say("nothing can be advised: the weights leave no room")
        else:
            self.app.knob_hand.offer({one.name: one.value for one in made.settings})
            if self.app.prompt is None:  # it said why there is nothing to offer
                self._hint = self.app.knobs.message

    def action_simulate(self) -> None:
        """Simulate these people under the settings in force and under those advised."""
        frame = self.app.store.view.frame
        made = self._plan(frame)
        if not isinstance(made, Plan) or frame is None:
            self._say("there is no plan for this engine")
            return
        people, settings = self._pair(made, frame)
        if (reason := self._not_here(made, frame)) is not None:
            self._say(reason)
        elif people is None:
            self._say("to simulate it, give the lengths of prompt and answer")
        elif not settings:
            self._say("there is nothing to simulate: no settings are advised")
        else:
            self.app.run_worker(
                self._simulate(frame.engine, people, settings), group="what-if", exclusive=True, exit_on_error=False
            )

    async def _simulate(self, engine: EngineInfo, people: People, settings: tuple[LiveSettings, ...]) -> None:
        calibration = await asyncio.to_thread(calibration_of_engine, engine)
        if isinstance(calibration, str):
            self._say(calibration)
            return
        self._job, self._expected = Job(people=people, settings=settings, calibration=calibration), None
        self.redraw()
        expected = await what_if(self._job)
        if isinstance(expected, str):
            self._job = None
            self._say(expected)
        else:
            self._expected = expected
        self.redraw()

    def _not_here(self, made: Plan, frame: Frame) -> str | None:
        """Why these settings are not ones for the engine that runs."""
        if self.form.elsewhere is not None:
            return self.form.elsewhere
        runs, planned = kv_dtype_of(frame), made.question.kv_dtype
        if planned != runs:
            return f"the cache here is {runs}: a plan for {planned} needs a restart with --kv-dtype {planned}"
        return None
