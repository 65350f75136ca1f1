"""Who held a slot at a time, and who got one since: against a list of all admissions and ends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotdeck.engine.telemetry.requests import slot_history
from slotdeck.engine.telemetry.requests.slot_history import SlotHistory


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=40), st.integers(0, 30))
def test_it_answers_as_the_whole_list_would(moves: list[tuple[int, bool]], asked: int) -> None:
    history, admissions, ends, now = SlotHistory(), [], [], 0
    for later, admitted in moves:
        now += later
        if admitted:
            history.on_admitted(now)
            admissions.append(now)
        elif len(ends) < len(admissions):
            history.on_ended(now, f"user-{len(ends)}")
            ends.append(now)
    held = sum(time <= asked for time in admissions) - sum(time <= asked for time in ends)
    assert history.held_at(asked) == max(0, held)
    assert history.admitted_after(asked) == sum(time > asked for time in admissions)
    freed = f"user-{len(ends) - 1}" if ends and ends[-1] > asked else None
    assert history.freed_by(asked) == freed


def test_only_the_last_times_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_history, "MAX_TIMES", 3)
    history = SlotHistory()
    for time in range(12):
        history.on_admitted(time)
        history.on_ended(time, "a")
        assert len(history._admissions._times) < 6
    assert history.admitted_after(8) == 3
    assert history.held_at(11) == 0
