"""The Doctor page: findings and remedies, the numbers of a healthy engine, and no work while hidden."""

from __future__ import annotations

from pathlib import Path

import pytest

from slotdeck.console.advice.finding import Finding
from slotdeck.console.pages.doctor import DoctorPage
from slotdeck.console.sources.base import Answer
from slotdeck.console.sources.recording import read_frames
from slotdeck.engine.telemetry.frame import LimitInfo
from tests.support import frames
from tests.support.console_app import confirmed, console, screen_text, seen, until
from tests.support.doctor_frames import QUEUED, run, slot
from tests.support.doctor_frames import frame as make_frame
from tests.support.history import record

SIZE = (80, 24)
LIMITS = LimitInfo(revision=7, slots=4, context=2048, queue=16, budget=64)
PREEMPTING = Path(__file__).parents[1] / "recordings" / "preempting.ndjson.gz"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slotdeck.console.pages.doctor.DIAGNOSIS_SECONDS", 0.02)


async def test_a_healthy_engine_is_reported_with_numbers() -> None:
    app, _source = console(frames.empty())
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("5")
        await seen(pilot, "Nothing is wrong.")
        assert "TTFT p95" in screen_text(app)


async def test_a_queue_is_found_and_its_key_named_and_copied() -> None:
    first, *rest = run(**QUEUED)
    app, source = console(first)
    async with app.run_test(size=SIZE) as pilot:
        await seen(pilot, "slots 4/4")
        await pilot.press("5")
        for frame in rest:
            source.give(frame)
        await seen(pilot, "- Requests wait for a slot")
        await seen(pilot, "enter applies it, by hand with s")
        assert "95% of the requests waited up to 4.2 s for a slot" in screen_text(app)
        copied = app.services.navigator.page.copied()
        assert copied is not None
        assert copied.startswith("Requests wait for a slot\n95% of the requests waited")


async def test_the_doctor_begins_with_recorded_frames() -> None:
    recorded = list(read_frames(PREEMPTING))
    await record([frame.model_copy(update={"engine": frames.ENGINE}) for frame in recorded[: len(recorded) // 10 * 10]])
    app, _source = console(recorded[-1])
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.press("5")
        await seen(pilot, "! Running requests lose their KV")
        await pilot.press("j")
        await seen(pilot, "› - Requests wait")
        assert "  ! Running requests lose their KV" in screen_text(app)
        await pilot.press("k")
        await seen(pilot, "› ! Running requests lose their KV")
        await pilot.press("G")
        await seen(pilot, "› - Requests wait")
        await pilot.press("g", "pagedown", "pageup")
        await seen(pilot, "› ! Running requests lose their KV")


async def test_enter_proposes_the_remedy_and_enter_again_applies_it() -> None:
    """What follows is said before; the change is pending, then in force, and one key takes it back."""
    first, *rest = run(**QUEUED, limits=LIMITS)
    app, source = console(first)
    source.answer = lambda _changes: Answer(True, revision=8)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("5")
        for frame in rest:
            source.give(frame)
        await seen(pilot, "try   slots 4 → 7   enter applies it")
        await pilot.press("enter")
        await seen(pilot, "slots 4→7: 7 x 2048 = 14.3k > pool 8.2k, preemption possible")
        assert not source.changes
        await pilot.press("escape")
        assert app.services.status.prompt is None
        await pilot.press("enter", "enter")
        await seen(pilot, "slots 4→7 pending")
        assert source.changes == [({"slots": 7}, 7)]
        source.give(confirmed(rest[-1], 8, slots=7))
        await seen(pilot, "slots 4→7 in force")
        await seen(pilot, "try   slots 4 → 7   in force")
        await pilot.press("enter")
        await seen(pilot, "these settings are in force already")
        source.answer = lambda _changes: Answer(True, revision=9)
        await pilot.press("u")
        await until(pilot, lambda: source.changes[-1] == ({"slots": 4}, 8))


async def test_what_the_simulator_predicts_stands_beside_the_change(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def predicted(_frames: object, finding: Finding, _history: object) -> str:
        asked.append(finding.remedy)
        return "TTFT p95 4.1 s → 1.2 s, ITL p95 35 ms → 41 ms, tok/s 88 → 140  (simulated, 42 requests)"

    monkeypatch.setattr("slotdeck.console.pages.doctor.prediction_text", predicted)
    first, *rest = run(**QUEUED, limits=LIMITS)
    app, source = console(first)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("5")
        for frame in rest:
            source.give(frame)
        await seen(pilot, "then  TTFT p95 4.1 s → 1.2 s")
        await seen(pilot, "enter applies it")
        await pilot.pause(0.1)
        assert asked.count("slots 4 → 7") == 1, "once for each change, not at every look"


async def test_the_outcome_is_shown_and_the_engine_judged_again() -> None:
    before = run(80, **QUEUED, limits=LIMITS)
    after = LIMITS.model_copy(update={"revision": 8, "slots": 7})
    young = [make_frame(80 + i, limits=after, late=QUEUED["late"]) for i in range(30)]
    await record([*before, *young])
    app, source = console(*before, *young)
    async with app.run_test(size=(100, 36)) as pilot:
        await until(pilot, lambda: app.services.session.store.view.frame == young[-1])
        await pilot.press("5")
        await seen(pilot, "± slots 4→7  compared in 31 s")
        await seen(pilot, "Changed 29 s ago. The findings are from before; the next verdict comes in 31 s.")
        assert "try   slots 4 → 7   in force" in screen_text(app)
        for second in range(110, 150):
            source.give(make_frame(second, limits=after))
        await seen(pilot, "Outcome of the last change")
        assert "± slots 4→7, 60 s before and after: TTFT p95 5.00s→0.90s" in screen_text(app)
        assert "after     0.90s n=40" in screen_text(app)
        await seen(pilot, "Nothing is wrong.")


async def test_a_finding_that_no_live_setting_helps_says_so() -> None:
    app, _source = console(*run(late={"itl_p50": 0.4, "itl_p95": 0.5}, slots=(slot(0),)))
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("5")
        await seen(pilot, "no live setting helps")
        await pilot.press("enter")
        await seen(pilot, "no live setting helps here: a smaller model")
        assert app.services.status.prompt is None


async def test_nothing_is_computed_while_another_page_is_shown() -> None:
    app, source = console(frames.steady())
    async with app.run_test(size=SIZE) as pilot:
        await seen(pilot, "slots 3/4")
        await pilot.press("5")
        await seen(pilot, "Doctor")
        page = app.services.navigator.page
        assert isinstance(page, DoctorPage)
        await until(pilot, lambda: page.diagnosis is not None)
        await pilot.press("1")
        source.give(frames.busy(4))
        await seen(pilot, "slots 20/20")
        await until(pilot, lambda: not [w for w in app.workers if w.group == "doctor" and w.is_running])
        assert app.services.session.store.view.frame not in page._frames
