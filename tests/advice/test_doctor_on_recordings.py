"""The doctor on recordings of real engines: what was provoked is found, and nothing in those that are well."""

from __future__ import annotations

from pathlib import Path

import pytest

from slotdeck.console.advice.doctor import diagnose
from slotdeck.console.sources.recording import read_frames
from tests.symptoms import CASES

RECORDINGS = Path(__file__).parents[1] / "recordings"


@pytest.mark.parametrize(
    ("name", "rules"),
    [
        ("empty", set()),
        ("five-people", {"queue"}),
        ("pool-nearly-full", {"preemption", "queue"}),
        ("preempting", {"preemption", "queue"}),
    ],
)
def test_recordings_of_real_runs(name: str, rules: set[str]) -> None:
    """Six agents on four slots wait for a slot; on a pool too small for them they are preempted."""
    findings = diagnose(list(read_frames(RECORDINGS / f"{name}.ndjson.gz")))
    assert {finding.rule for finding in findings} == rules


PROVOKED: dict[str, dict[str, set[str]]] = {
    "one-slot": {"queue": {"slots"}},
    "serial": {"queue": {"mode"}},
    "static": {"queue": {"mode"}},
    "pool-holds-back": {"queue": {"kv_tokens"}},
    "nobody-may-wait": {"refused": {"slots"}},
    "queue-too-short": {"refused": {"slots"}, "queue": {"slots"}},
    "queue-too-deep": {"deep_queue": {"queue"}},
    "preempting": {"preemption": {"kv_tokens"}},
    "small-budget": {"prefill": {"budget"}},
    "many-streams": {"decode": {"slots"}},
    "large-budget": {"budget": {"budget"}},
    "small-context": {"context": {"context"}},
    "restarted": {"cold_start": set()},
}
"""What was provoked on the real engine (tests/symptoms.py): the rules that must speak, the costliest first, and what
each would change."""

CONSEQUENCES = {"queue", "prefill", "budget"}
"""What a slow machine may show beside what was provoked."""


def test_each_case_that_is_provoked_is_expected_here() -> None:
    cases = {case.name for case in CASES}
    assert cases == set(PROVOKED) | {name for name in cases if name.startswith("healthy-")}


@pytest.mark.parametrize("name", PROVOKED)
def test_each_symptom_is_found_in_a_real_engine_that_has_it(name: str) -> None:
    findings = diagnose(list(read_frames(RECORDINGS / "symptoms" / f"{name}.ndjson.gz")))
    found = {finding.rule: set(finding.changes) for finding in findings if finding.rule in PROVOKED[name]}
    assert found == PROVOKED[name]
    assert findings[0].rule == next(iter(PROVOKED[name]))
    assert {finding.rule for finding in findings} <= set(PROVOKED[name]) | CONSEQUENCES


@pytest.mark.parametrize("name", [case.name for case in CASES if case.name.startswith("healthy-")])
def test_it_is_silent_about_a_real_engine_that_is_well(name: str) -> None:
    assert diagnose(list(read_frames(RECORDINGS / "symptoms" / f"{name}.ndjson.gz"))) == []
