"""``tests/FAULTS.md`` lists the faults that tests are named after."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parent
PAGE = TESTS / "FAULTS.md"
AREAS = "adv|con|ctx|dat|dia|flt|key|kv|met|mod|num|ops|ref|req|run|sch|sec|tui|txt"
IN_NAMES = re.compile(rf"(?<=_)({AREAS})_(\d\d(?:_(?:and_)?\d\d)*)(?=_|$)")
"""``kv_04_and_18`` and ``con_11_12_13`` name several faults of one area."""
IN_TEXT = re.compile(rf"\b({AREAS.upper()})-(\d\d)\b")


def ids_of(test: str) -> set[str]:
    """The fault ids in the name of a test."""
    return {
        f"{area.upper()}-{number}"
        for area, numbers in IN_NAMES.findall(test)
        for number in re.findall(r"\d\d", numbers)
    }


def used() -> set[str]:
    """The fault ids in the names and comments of all tests."""
    found: set[str] = set()
    for path in TESTS.rglob("test_*.py"):
        text = path.read_text("utf-8") if path != Path(__file__) else ""
        for name in re.findall(r"def (test_\w+)", text):
            found |= ids_of(name)
        found |= {f"{area}-{number}" for area, number in IN_TEXT.findall(text)}
    return found


def listed() -> list[str]:
    return re.findall(r"^\| ([A-Z]+-\d\d) \| \S", PAGE.read_text("utf-8"), re.MULTILINE)


def test_ids_are_read_from_names() -> None:
    assert ids_of("test_kv_04_and_18_equal_when_preempted") == {"KV-04", "KV-18"}
    assert ids_of("test_con_11_12_13_one_runs") == {"CON-11", "CON-12", "CON-13"}
    assert ids_of("test_req_06_con_14_n_counts_n") == {"REQ-06", "CON-14"}
    assert ids_of("test_same_id_for_two_requests_con_09") == {"CON-09"}
    assert ids_of("test_kv_08_500_mixed_rounds") == {"KV-08"}
    assert ids_of("test_a_sigterm_leaves_nothing") == set()


def test_the_page_lists_exactly_the_faults_that_tests_name() -> None:
    assert used() == set(listed())


def test_no_fault_is_listed_twice() -> None:
    assert len(listed()) == len(set(listed()))
