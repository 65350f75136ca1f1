"""Recorded requests become traffic again: conversations are recognised by their numbers, people by their pauses."""

from __future__ import annotations

import pytest

from slotdeck.console.advice.recorded import replay, users_of
from slotdeck.engine.settings import LiveSettings
from slotdeck.engine.telemetry.history.schema import RequestRecord
from tests.support.calibration import CALIBRATION
from tests.support.requests import START, record


def test_a_conversation_is_recognised_and_its_pauses_kept() -> None:
    [user] = users_of([record("a", 0, 100, 50), record("a", 32, 180, 40), record("a", 64, 90, 20)])
    first, second, third = user.turns
    assert (first.message, first.fresh, first.answer) == (100, True, 50)
    assert (second.message, second.fresh, second.think) == (30, False, pytest.approx(30.0))
    assert (third.message, third.fresh) == (90, True), "a shorter prompt is another conversation"


def test_requests_at_once_and_long_absences_come_when_they_came() -> None:
    users = users_of([record("a", 0, 100, 50, 9.0), record("a", 5, 100, 50), record("b", 1000, 64, 8)])
    assert [user.name for user in users] == ["a", "a", "b"]
    assert [next(iter(user.turns)).at for user in users] == [0.0, 5.0, 1000.0]


def test_what_has_no_answer_is_left_out() -> None:
    assert (
        users_of([record("a", 0, 100, 0), RequestRecord(boot_id="b", request_id="r", ended=START, outcome="failed")])
        == []
    )


def test_other_settings_give_other_times_for_the_same_requests() -> None:
    records = [record(f"u{number}", 0.1 * number, 300, 60, 5.0) for number in range(6)]
    one, six = (
        replay(records, LiveSettings(slots=slots, context=512, kv_tokens=512 * slots), CALIBRATION) for slots in (1, 6)
    )
    assert one.finished == six.finished == 6
    assert one.generated == six.generated == 360
    assert (one.ttft_p95 or 0) > 2 * (six.ttft_p95 or 0)
    assert one.preemptions == six.preemptions == 0
