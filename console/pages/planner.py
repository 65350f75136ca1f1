"""The Planner page: how many people fit, what to set and why, and a key that applies it to the running engine."""

from __future__ import annotations

import asyncio

from slotdeck.console.advice.capacity import Speed
from slotdeck.console.advice.forecast import People, ServiceForecast, people_of
from slotdeck.console.advice.plan import Plan
from slotdeck.console.advice.running import kv_dtype_of, settings_of
from slotdeck.console.drawing.cells import Line, blank, clean, exact, wrap
from slotdeck.console.drawing.scrolling import moved, scrolled, visible_from
from slotdeck.console.keys.actions import Command
from slotdeck.console.pages.context import PageContext
from slotdeck.console.pages.layout import Chrome, banner, framed, heading
from slotdeck.console.pages.page import Page, list_handlers
from slotdeck.console.planning.form import FIELDS, Form, by_name
from slotdeck.console.planning.live_plan import LivePlan
from slotdeck.console.planning.measured_speed import calibration_of_engine, speed_of_engine
from slotdeck.console.processes.simulation_worker import Job, simulate
from slotdeck.console.sections.header import title_line
from slotdeck.console.sections.plan import fact_lines, setting_lines, simulation_lines, upper_lines, verdict_lines
from slotdeck.console.session.prompts import ValuePrompt
from slotdeck.console.session.status_line import Message
from slotdeck.console.state.store import View
from slotdeck.engine.settings import LiveSettings
from slotdeck.engine.telemetry.frame import EngineInfo, Frame

MIN_ADVICE_ROWS = 4
"""Rows of advice below the inputs. On lower terminals the inputs scroll together with the advice."""
UNKNOWN_MODEL = (
    "The sizes of this model are not known here. `slotdeck plan --model-config FILE --gpu 24GiB` plans for any model "
    "and machine without an engine."
)


class PlannerPage(Page):
    """Plans again whenever a frame or a key changes what is asked. The inputs stay as long as the console runs."""

    name = "planner"

    def __init__(self, context: PageContext) -> None:
        super().__init__(context)
        self.form = Form()
        self.place = 0
        """The selected input."""
        self._made: Plan | str | None = None
        """The plan for what is shown, or why there is none; ``None`` if the sizes of the model are not known."""
        self._live_plan = LivePlan()
        self._speed: Speed | None = None
        self._speed_read_for: EngineInfo | None = None
        self._job: Job | None = None
        self._expected: list[ServiceForecast] | None = None
        """The result of the job; ``None`` while it runs."""
        self._offset = 0
        """First line that is shown of what scrolls."""
        self._hint: Message | None = None
        """What this page said last on the status line."""
        self.handlers = {
            **list_handlers(self.move, lambda: 1),
            Command.PAGE: self.scroll,
            Command.ADJUST: self.adjust,
            Command.TYPE_VALUE: self.type_value,
            Command.APPLY_ADVICE: self.propose_advice,
            Command.SIMULATE: self.simulate,
        }

    # ------------------------------------------------------------------ planning

    def opened(self, argument: str | None) -> None:
        """Read the measured speed again: it may have been measured since."""
        self._speed_read_for = None
        self.on_view(self.context.view)

    def closed(self) -> None:
        """Remove this page's hint, which means nothing on another page."""
        self.context.withdraw(self._hint)
        self._hint = None

    def on_view(self, view: View) -> None:
        """Plan for the engine that is shown, and read its speed if that was not done yet."""
        if view.frame is not None and view.frame.engine != self._speed_read_for:
            self._speed_read_for = view.frame.engine
            self.context.run(self._read_speed(view.frame.engine), "planner")
        self._made = self._plan(view.frame)

    async def _read_speed(self, engine: EngineInfo) -> None:
        speed = await asyncio.to_thread(speed_of_engine, engine)
        if engine == self._speed_read_for and speed != self._speed:
            self._speed = speed
            self._made = self._plan(self.context.view.frame)
            self.redraw()

    def _plan(self, frame: Frame | None) -> Plan | str | None:
        return self._live_plan.update(self.form, frame, self._speed)

    def _change_form(self, form: Form) -> None:
        self.form = form
        self._made = self._plan(self.context.view.frame)

    # ------------------------------------------------------------------ drawing

    def compose(self, view: View, chrome: Chrome, width: int, height: int) -> list[Line]:
        note = f"{by_name(self._field).title}: {by_name(self._field).help}"
        top = [title_line(view, width), heading("Planner", note, width), banner(view, chrome, width)]
        return framed(top, lambda room: self._body(view, width, room), chrome, width, height)

    def _body(self, view: View, width: int, height: int) -> list[Line]:
        fixed, text = self._text(view, width, height)
        room = max(1, height - len(fixed))
        return [*fixed, *scrolled(text, visible_from(self._offset, len(text), room), room, width, "PgDn PgUp")]

    def _text(self, view: View, width: int, height: int) -> tuple[list[Line], list[Line]]:
        """The lines that stay, and those that scroll."""
        made = self._made
        if not isinstance(made, Plan):
            text = made or ("no engine is connected" if view.frame is None else UNKNOWN_MODEL)
            return [], [exact([(f" {row}", "text")], width) for row in wrap(clean(text), width - 2, 4)]
        upper = upper_lines(made, self.form, self.place, width)
        parts = [
            fact_lines(made, width),
            setting_lines(made, view.limits, width),
            self._simulation(made, view.frame, width),
            verdict_lines(made, width),
        ]
        room = height - len(upper) - sum(map(len, parts)) - sum(map(bool, parts))
        air = [blank(width)] if room >= 0 else []
        advice = [line for part in parts if part for line in (*air, *part)]
        return (upper, advice) if height - len(upper) >= MIN_ADVICE_ROWS else ([], [*upper, *advice])

    def _simulation(self, made: Plan, frame: Frame | None, width: int) -> list[Line]:
        """What was simulated, as long as it is about what is planned now."""
        if self._job is None or frame is None or self._pair(made, frame) != (self._job.people, self._job.settings):
            return []
        if self._expected is None:
            return [exact([(" simulating …", "label")], width)]
        return simulation_lines(self._expected, width)

    def _pair(self, made: Plan, frame: Frame) -> tuple[People | None, tuple[LiveSettings, ...]]:
        """The people, and the settings in force and advised."""
        if not made.settings:
            return people_of(made), ()
        now = settings_of(frame)
        return people_of(made), (now, now.model_copy(update={one.name: one.value for one in made.settings}))

    @property
    def _field(self) -> str:
        return FIELDS[self.place].name

    def copied(self) -> str | None:
        """The plan as `slotdeck plan` prints it."""
        from slotdeck.console.advice.plan_report import plan_text

        made = self._plan(self.context.newest.frame)
        return "\n".join(plan_text(made)) if isinstance(made, Plan) else None

    # ------------------------------------------------------------------ commands

    def move(self, step: int) -> None:
        """Select another input and bring it into view."""
        self.place = moved(self.place, step, len(FIELDS))
        fixed, text = self._visible_text()
        if not fixed:  # the inputs scroll with the rest, below their heading
            keep = range(self.place + 1, self.place + 3)
            self._offset = visible_from(self._offset, len(text), self.body_height(), keep)

    def scroll(self, direction: int) -> None:
        """Scroll the advice by half a page."""
        fixed, text = self._visible_text()
        room = max(1, self.body_height() - len(fixed))
        offset = visible_from(self._offset, len(text), room) + direction * max(1, room // 2)
        self._offset = visible_from(offset, len(text), room)

    def _visible_text(self) -> tuple[list[Line], list[Line]]:
        return self._text(self.context.view, self.context.size[0], self.body_height())

    def adjust(self, direction: int) -> None:
        """Change the selected input by one step."""
        made = self._plan(self.context.newest.frame)
        if isinstance(made, Plan):
            self._change_form(self.form.stepped(self._field, direction, made))

    def type_value(self) -> None:
        """Type a value for the selected input."""
        name = self._field

        def on_enter(text: str) -> str | None:
            form, problem = self.form.typed(name, text)
            self._change_form(form)
            return problem

        self.context.ask(ValuePrompt(by_name(name).title, f"{by_name(name).help}; enter keeps it, esc drops", on_enter))

    def propose_advice(self) -> None:
        """Propose the advised settings to the engine that runs."""
        frame = self.context.newest.frame
        made = self._plan(frame)
        if not isinstance(made, Plan) or frame is None:
            self._say("there is no plan for this engine")
        elif (reason := self._not_here(made, frame)) is not None:
            self._say(reason)
        elif not made.settings:
            self._say("nothing can be advised: the weights leave no room")
        else:
            self._hint = self.context.propose({one.name: one.value for one in made.settings})

    def simulate(self) -> None:
        """Simulate these people under the settings in force and under those advised."""
        frame = self.context.newest.frame
        made = self._plan(frame)
        if not isinstance(made, Plan) or frame is None:
            self._say("there is no plan for this engine")
            return
        people, settings = self._pair(made, frame)
        if (reason := self._not_here(made, frame)) is not None:
            self._say(reason)
        elif people is None:
            self._say("a simulation needs the lengths of prompt and answer")
        elif not settings:
            self._say("there is nothing to simulate: no settings are advised")
        else:
            self.context.run(self._simulate(frame.engine, people, settings), "simulation", exclusive=True)

    async def _simulate(self, engine: EngineInfo, people: People, settings: tuple[LiveSettings, ...]) -> None:
        calibration = await asyncio.to_thread(calibration_of_engine, engine)
        if isinstance(calibration, str):
            self._say(calibration)
            return
        self._job, self._expected = Job(people=people, settings=settings, calibration=calibration), None
        self.redraw()
        expected = await simulate(self._job)
        if isinstance(expected, str):
            self._job = None
            self._say(expected)
        else:
            self._expected = expected
        self.redraw()

    def _say(self, hint: str) -> None:
        self._hint = self.context.say(hint, failed=True)

    def _not_here(self, made: Plan, frame: Frame) -> str | None:
        """Why the plan is not one for the engine that runs; ``None`` if it is."""
        if self.form.elsewhere is not None:
            return self.form.elsewhere
        runs, planned = kv_dtype_of(frame), made.question.kv_dtype
        if planned != runs:
            return f"the cache here is {runs}: a plan for {planned} needs a restart with --kv-dtype {planned}"
        return None
