"""What filled a long gap between two tokens: each cause on its own, and which one wins."""

from __future__ import annotations

import pytest

from slotdeck.engine.telemetry.requests import gaps
from slotdeck.engine.telemetry.requests.gaps import Stall, Step, explain_gaps


def steps(*ends: float, **last: object) -> list[Step]:
    """Steps that end then, each as long as the time since the one before; ``last`` are facts of the last one."""
    made = []
    for place, end in enumerate(ends):
        values: dict[str, object] = {
            "ended": end, "seconds": 0.1, "decodes": 2, "prefills": (), "prefill_total": 0, "swapping": False,
        }  # fmt: skip
        made.append(Step(**(values | (last if place == len(ends) - 1 else {}))))  # type: ignore[arg-type]
    return made


SHORT = (10.0, 10.1, 10.2, 10.3)


def cause(*stalls: Stall, gap: float = 1.0, **last: object) -> tuple[str, str]:
    """Cause and text of a gap of ``gap`` seconds after three of a tenth of a second."""
    found = explain_gaps(steps(*SHORT, SHORT[-1] + gap, **last), stalls, "a", 9.0)
    assert found["gap_causes"][:-1] == "..."
    (long,) = found["long_gaps"]
    assert long.at == pytest.approx(SHORT[-1] + gap - 9.0)
    assert long.seconds == pytest.approx(gap)
    assert gaps.CAUSE_LETTERS[long.cause] == found["gap_causes"][-1]
    return long.cause, long.text


def test_no_gap_is_long_without_a_middle_to_compare_with() -> None:
    assert explain_gaps([], (), "a", 0.0) == {
        "gaps": (), "gap_causes": "", "gap_p50": None, "gap_p95": None, "long_gaps": (),
    }  # fmt: skip
    found = explain_gaps(steps(1.0, 1.5, 2.0, 3.0), (), "a", 0.0)
    assert found["gaps"] == (0.5, 0.5, 1.0)
    assert found["gap_causes"] == "...", "twice the median is not yet long"
    assert found["gap_p50"] == 0.5
    assert found["gap_p95"] == pytest.approx(0.95)


def test_a_preemption_within_the_gap_is_its_cause() -> None:
    lost = Stall(10.5, 32, False, "pool_full", ended=10.9)
    assert cause(lost, prefill_total=64) == ("preempted", "a preemption: 0.40 s without room, 32 tokens lost")
    swapped = Stall(10.5, 32, True, "pool_full", ended=10.9)
    assert cause(swapped)[1] == "a preemption: 0.40 s without room, 32 tokens swapped out"


def test_a_preemption_that_still_lasts_counts_to_the_end_of_the_gap() -> None:
    assert cause(Stall(10.5, 8, False, "pool_full"))[1] == "a preemption: 0.80 s without room, 8 tokens lost"


@pytest.mark.parametrize(
    "stall",
    [Stall(9.5, 8, False, "pool_full", ended=10.3), Stall(11.3, 8, False, "pool_full", ended=12.0)],
    ids=["before", "after"],
)
def test_a_preemption_outside_the_gap_is_not_its_cause(stall: Stall) -> None:
    assert cause(stall)[0] == "between_steps"


def test_prompts_that_were_computed_meanwhile_are_the_cause() -> None:
    prefills = (("b", "bob", 16), ("a", "ann", 4), ("c", "cid", 2), ("d", "dan", 3), ("e", "bob", 1))
    assert cause(prefills=prefills, prefill_total=26, seconds=0.9) == (
        "prefill", "the prompt of bob and cid and 1 more: 26 tokens read first",
    )  # fmt: skip
    assert cause(prefills=prefills[:1], prefill_total=20)[1] == "the prompt of bob: 20 tokens read first"
    two = cause(prefills=(("b", "bob", 1), ("c", "cid", 2)), prefill_total=3)[1]
    assert two == "the prompt of bob and cid: 3 tokens read first"
    assert cause(prefills=prefills[1:2], prefill_total=7)[1] == "the prompts of others: 7 tokens read first"


def test_a_step_that_took_half_of_the_gap_is_slow() -> None:
    assert cause(seconds=0.51, decodes=3) == ("slow_step", "one slow step with 3 writing")
    assert cause(seconds=0.8, swapping=True) == (
        "os_swap", "one slow step with 2 writing while the machine swapped memory",
    )  # fmt: skip
    assert cause(seconds=0.49, swapping=True) == ("between_steps", "time between steps, beside a step of 0.49 s")


def test_the_longest_gaps_come_first_and_only_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gaps, "MAX_LONG", 2)
    ends = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 1.7, 4.7, 6.7]
    found = explain_gaps(steps(*ends), (), "a", 0.0)
    assert [gap.seconds for gap in found["long_gaps"]] == pytest.approx([3.0, 2.0])
    assert found["gap_causes"] == ".......bbb"
