"""The Planner page: inputs by keyboard, advice with reasons, and the advice applied to the engine."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotdeck.console.advice.capacity import CapacityError, Memory
from slotdeck.console.advice.forecast import People
from slotdeck.console.advice.plan import Plan
from slotdeck.console.advice.planner import make_plan
from slotdeck.console.bench.calibration_file import save_calibration
from slotdeck.console.drawing.cells import line_width, plain
from slotdeck.console.pages.planner import PlannerPage
from slotdeck.console.planning.form import FIELDS, Form, shown
from slotdeck.console.processes.simulation_worker import Job, simulate
from slotdeck.console.sections.plan import setting_lines, upper_lines, verdict_lines
from slotdeck.console.sources.base import Answer
from slotdeck.engine.core.kv_memory import KV_VALUE_BYTES
from slotdeck.engine.telemetry.frame import EngineInfo, Frame
from tests.support import frames
from tests.support.calibration import CALIBRATION
from tests.support.console_app import GONE, confirmed, console, screen_text, seen, until

SIZE = (80, 24)


def plan_of(form: Form, frame: Frame | None = None) -> Plan:
    question = form.question(frame or frames.steady())
    assert question is not None
    return make_plan(question)


def typed(**texts: str) -> Form:
    form = Form()
    for name, text in texts.items():
        form, problem = form.typed(name, text)
        assert problem is None, problem
    return form


# ------------------------------------------------------------------ the form


def test_an_empty_form_plans_for_what_runs() -> None:
    plan = plan_of(Form())
    assert plan.question.kv_dtype == "fp32"
    assert plan.question.model.kv_bytes("fp32") == 46_080
    assert plan.setting("context") == 2048
    assert plan.setting("kv_tokens") == 8192
    assert shown("prompt", Form(), plan) == "–"
    assert shown("memory", Form(), plan).endswith("GiB RAM")


def test_typed_values_are_taken_and_an_empty_text_makes_them_automatic_again() -> None:
    form = typed(users="20", turn_seconds="0", prompt="6,000", answer="200", kv_dtype="INT8", memory="gpu 24GiB")
    plan = plan_of(form)
    assert (plan.load.in_flight, plan.capacity.context, plan.question.kv_dtype) == (20, 6400, "int8")
    assert plan.question.memory == Memory(24 << 30, True, 0.92)
    assert plan.question.model.weights == "bf16"
    assert form.typed("users", " ")[0].given("users") is None
    assert typed(memory="16 GB ram").given("memory") == Memory(16_000_000_000, False)


@pytest.mark.parametrize(
    ("name", "text"),
    [("users", "many"), ("users", "0"), ("users", "2.5"), ("users", "nan"), ("context", "63"), ("kv_dtype", "q8"),
     ("memory", "24"), ("memory", "gpu"), ("generate_seconds", "0"), ("prompt", "-3"), ("answer", "inf")],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_what_can(name: str, text: str) -> None:
    form, problem = Form().typed(name, text)
    assert form == Form()
    assert problem is not None
    assert "empty" in problem


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from([one.name for one in FIELDS]), st.sampled_from([1, -1])), max_size=30))
def test_any_steps_leave_a_plan_that_can_be_drawn(steps: list[tuple[str, int]]) -> None:
    form = Form()
    for name, direction in steps:
        try:
            form = form.stepped(name, direction, plan_of(form))
        except CapacityError as error:  # pragma: no cover
            pytest.fail(str(error))
    for cells in (80, 120):
        plan = plan_of(form)
        lines = upper_lines(plan, form, 0, cells) + verdict_lines(plan, cells)
        lines += setting_lines(plan, frames.steady().limits, cells)
        assert {line_width(line) for line in lines} == {cells}


def test_steps_go_up_and_down_by_sizes_that_fit() -> None:
    plan = plan_of(typed(users="9"))
    up = typed(users="9").stepped("users", 1, plan)
    assert up.given("users") == 10
    assert up.stepped("users", 1, plan_of(up)).given("users") == 15
    assert up.stepped("users", -1, plan_of(up)).given("users") == 9
    assert Form().stepped("users", -1, plan_of(typed(users="1"))).given("users") == 1
    kinds = [Form()]
    for _ in range(len(KV_VALUE_BYTES) + 1):
        kinds.append(kinds[-1].stepped("kv_dtype", 1, plan_of(kinds[-1])))
    assert [form.given("kv_dtype") for form in kinds] == [None, *KV_VALUE_BYTES, None]


def test_advice_shows_what_differs_from_now_and_the_worst_first() -> None:
    plan = plan_of(typed(users="20", turn_seconds="0", context="8192", memory="4GiB"))
    text = "\n".join(plain(line) for line in setting_lines(plan, frames.steady().limits, 80))
    assert "s slots            4 → 9" in text
    assert "b budget          64 = 64" in text
    text = "\n".join(plain(line) for line in verdict_lines(plan, 80))
    assert " - 20 slots x 8,192 need 163,840 tokens, but the cache holds" in text
    assert text.index("163,840") < text.index("More cores only speed up")


# ------------------------------------------------------------------ the page


async def test_inputs_change_by_keys_and_the_advice_is_applied_as_one_change() -> None:
    app, source = console(frames.steady())
    async with app.run_test(size=SIZE) as pilot:
        await seen(pilot, "slots 3/4")
        await pilot.press("2")
        await seen(pilot, "› users                  5 assumed")
        await pilot.press("enter", *"20", "enter")
        await seen(pilot, "› users                 20")
        await pilot.press("plus")
        await seen(pilot, "› users                 25")
        await pilot.press("left", "left", "minus")
        await seen(pilot, "› users                 10")
        await seen(pilot, "1.33 of 10")
        await pilot.press("j", "j", "enter", "x", "enter")
        await seen(pilot, "busy time per turn: seconds")
        await pilot.press("backspace", *"40", "enter")
        await seen(pilot, "4.44 of 10")
        await pilot.press("a")
        await seen(pilot, "slots 4→6, queue 16→4, kv_tokens 8192→12288")
        await seen(pilot, "6 x 2048 = 12.3k fits the pool")
        assert source.changes == []
        await pilot.press("escape", "a", "enter")
        await until(pilot, lambda: source.changes == [({"slots": 6, "queue": 4, "kv_tokens": 12_288}, 3)])
        await seen(pilot, "pending")
        source.give(confirmed(frames.steady(), 4, slots=6, queue=4, kv_tokens=12_288))
        await seen(pilot, "s slots            6 = 6")
        source.answer = lambda _changes: Answer(True, revision=5)
        await pilot.press("u")
        await until(pilot, lambda: source.changes[-1] == ({"slots": 4, "queue": 16, "kv_tokens": 8192}, 4))
        await pilot.press("1")
        await seen(pilot, "KV pool")
        await pilot.press("2")
        await seen(pilot, "4.44 of 10")


async def test_a_plan_for_another_machine_is_not_applied_here() -> None:
    app, source = console(frames.steady())
    async with app.run_test(size=SIZE) as pilot:
        await seen(pilot, "slots 3/4")
        await pilot.press("2", "G", "enter", *"gpu 24GiB", "enter", "a")
        await seen(pilot, "this plan is for another memory")
        await pilot.press("enter", "enter", "k", "plus", "plus", "plus", "plus", "a")
        await seen(pilot, "a plan for int8 needs a restart with --kv-dtype int8")
        assert source.changes == []


async def test_a_hint_of_the_planner_leaves_with_it_and_the_result_of_a_change_stays() -> None:
    app, source = console(frames.steady())
    async with app.run_test(size=SIZE) as pilot:
        await seen(pilot, "slots 3/4")
        hint = "a simulation needs the lengths of prompt and answer"
        for way_out in ("escape", "3"):
            await pilot.press("2", "w")
            await seen(pilot, hint)
            await pilot.press(way_out)
            assert hint not in screen_text(app)
        await pilot.press("2", "w")
        await seen(pilot, hint)
        source.answer = lambda _changes: Answer(False, message="the engine refuses")
        await pilot.press("s", "plus", "enter")
        await seen(pilot, "the engine refuses")
        await pilot.press("escape")
        await seen(pilot, "KV pool")
        assert "the engine refuses" in screen_text(app)


async def test_the_advice_scrolls_and_is_copied_as_the_command_prints_it() -> None:
    app, _source = console(frames.steady())
    async with app.run_test(size=SIZE) as pilot:
        await seen(pilot, "slots 3/4")
        await pilot.press("2")
        await seen(pilot, "more lines")
        await pilot.press("pagedown", "pagedown")
        await seen(pilot, "Assumed: 12 s of work for each turn")
        await pilot.press("y")
        assert app.clipboard.startswith("SmolLM2-135M-Instruct\n  weights ")


async def test_a_measured_speed_is_used_when_the_page_is_opened_again() -> None:
    app, _source = console(frames.steady())
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("2", "j", "j", "j", "enter", *"1100", "enter", "j", "enter", *"120", "enter")
        await seen(pilot, "busy / turn         12 s assumed")
        save_calibration(CALIBRATION.model_copy(update={"weights": "fp32", "kv_dtype": "fp32"}))
        await pilot.press("1", "2")
        await seen(pilot, "busy / turn          2 s from speed")
        await seen(pilot, "reading prompts adds about 58 ms to a step")


@pytest.mark.slow
async def test_what_would_happen_is_simulated_beside_and_dropped_when_it_is_about_something_else() -> None:
    app, source = console(frames.steady())
    async with app.run_test(size=(80, 50)) as pilot:
        await pilot.press("2", "w")
        await seen(pilot, "a simulation needs the lengths of prompt and answer")
        await pilot.press("enter", *"9", "enter", "j", "enter", *"30", "enter", "j", "enter", *"6", "enter")
        await pilot.press("j", "enter", *"600", "enter", "j", "enter", *"150", "enter", "w")
        await seen(pilot, "run `slotdeck bench --calibrate`")
        save_calibration(CALIBRATION.model_copy(update={"weights": "fp32", "kv_dtype": "fp32"}))
        await pilot.press("w")
        await seen(pilot, "simulating …")
        await seen(pilot, "simulated    TTFT p95  ITL p95  tok/s  preempted  refused  served")
        now, advised = (line for line in screen_text(app).splitlines() if line.startswith((" current", " advised")))
        assert now.split()[0] == "current"
        assert all(line.split()[-4].replace(".", "").isdigit() for line in (now, advised))
        assert [line.split()[-3] for line in (now, advised)] == ["0", "0"]
        await pilot.press("plus")
        await until(pilot, lambda: "simulated " not in screen_text(app))
        await pilot.press("minus")
        await seen(pilot, " current ")
        source.give(confirmed(frames.steady(), 4, slots=2))
        await until(pilot, lambda: "simulated " not in screen_text(app))


async def test_a_failed_simulation_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    job = Job(people=People(users=1, pause=0, prompt=1, answer=1), settings=(), calibration=CALIBRATION)
    assert await simulate(job) == "the simulation failed (exit code 1)"


async def test_digits_do_not_flicker_while_the_free_memory_changes_a_little() -> None:
    def using(used: int) -> Frame:
        return frames.steady().model_copy(update={"host": frames.HOST.model_copy(update={"memory_used": used})})

    app, source = console(using(8 << 30))
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("2")
        await seen(pilot, "cache        17")
        before = screen_text(app)
        source.give(using((8 << 30) + (50 << 20)).model_copy(update={"sequence": 2}))
        await until(
            pilot,
            lambda: (
                app.services.session.store.view.frame is not None
                and app.services.session.store.view.frame.sequence == 2
            ),
        )
        app.draw()
        assert screen_text(app) == before
        source.give(using(16 << 30).model_copy(update={"sequence": 3}))
        await seen(pilot, "cache        8.97 GB")


async def test_without_an_engine_or_its_sizes_it_says_so() -> None:
    app, source = console(GONE)
    async with app.run_test(size=SIZE) as pilot:
        await seen(pilot, "DISCONNECTED")
        await pilot.press("2", "plus", "a")
        await seen(pilot, "no engine is connected")
        source.give(frames.steady().model_copy(update={"engine": EngineInfo(name="vllm", model="big")}))
        await seen(pilot, "slotdeck plan --model-config FILE")
        assert isinstance(app.services.navigator.page, PlannerPage)


@pytest.mark.parametrize("size", [(20, 8), (40, 15), (60, 20), (79, 24), (200, 60)])
async def test_any_terminal_gets_complete_lines_and_a_narrow_one_shows_what_fits_below(size: tuple[int, int]) -> None:
    app, _source = console(frames.steady())
    async with app.run_test(size=size) as pilot:
        await pilot.press("2")
        await until(pilot, lambda: "Planner" in screen_text(app))
        lines = app.base.canvas.lines
        assert len(lines) == size[1]
        assert {line_width(line) for line in lines} == {size[0]}
        for _ in FIELDS:
            await pilot.press("j")
            await seen(pilot, "›")
        await seen(pilot, "› memory")
        for _ in range(20):
            if "what fits" in screen_text(app) or size[1] < 15:
                return
            await pilot.press("pagedown")
        pytest.fail("what fits is nowhere")
