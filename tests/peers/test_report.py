"""Tables and targets of the comparison, from made-up rounds. No server is started."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from tests.peers.measure import Point, Round
from tests.peers.report import Facts, merged, print_tables, targets

FACTS = Facts(packed_bytes=140_000_000, kept_bytes=1 << 30)


def a_round(scale: float, resident: int = 0, **changes: Any) -> Round:
    """20 users at ``scale`` times 100 tokens/s."""
    point = Point("20", 100 * scale, 0.5, 2.0, 0.02, 0.05, 0.1, 1280, 4000, {})
    for name, value in changes.items():
        setattr(point, name, value)
    return Round([point], resident, 1.0)


def test_rounds_merge_to_medians_and_the_longest_pause() -> None:
    rounds = [a_round(1, itl_max=0.1), a_round(3, itl_max=0.7), a_round(2, itl_max=0.2)]
    point = merged(rounds, "20")
    assert point is not None
    assert (point.tokens_per_second, point.itl_max, point.generated) == (200, 0.7, 3840)
    assert merged(rounds, "5") is None


def test_targets_are_judged_against_the_best_peer_at_the_point() -> None:
    results = {
        "slotdeck": [a_round(2, resident=1800 << 20)],
        "vllm": [a_round(1.2, itl_p95=0.1, itl_max=2.0)],
        "openvino": [a_round(1.6, ttft_p95=1.0, itl_max=0.3)],
        "llama-cpp-python": [a_round(9, itl_max=0.001, errors={"connection": 19})],  # it served one of twenty
    }
    found = {target["target"].partition(":")[0]: target for target in targets(results, FACTS)}
    assert found["tokens/s at 20 users over the best peer"]["reached"] is False  # 1.25 times
    assert found["p95 TTFT at 20 users, as the best peer's"]["reached"] is False
    assert found["p95 ITL at 20 users, 0.6 of vLLM's"]["reached"] is True
    assert found["longest pause at 20 users, a tenth of vllm's"]["reached"] is True
    assert found["longest pause at 20 users, half of the best peer's"]["reached"] is True
    assert found["resident memory"]["reached"] is False
    assert found["resident memory"]["found"] == "1800 MiB"


def test_the_share_of_bandwidth_is_that_of_each_round_with_its_own_bandwidth() -> None:
    rounds = [a_round(1, load="1", itl_p50=itl) for itl in (0.0035, 0.005, 0.01)]
    for one, bandwidth in zip(rounds, (80e9, 40e9, 15e9), strict=True):  # 0.5, 0.7 and 0.93
        one.bandwidth = bandwidth
    found = {target["target"].partition(":")[0]: target for target in targets({"slotdeck": rounds}, FACTS)}
    assert found["bandwidth that decoding for 1 user uses"]["found"] == "0.7"


@pytest.mark.parametrize("speed", [100.0, None])
def test_a_table_shows_what_is_unknown_as_a_dash(speed: float | None) -> None:
    quiet = a_round(1)
    quiet.points[0].tokens_per_second = speed
    text = StringIO()
    names = {"slotdeck": "Slotdeck", "vllm": "vLLM"}
    print_tables({"slotdeck": [quiet], "vllm": [a_round(0.5)]}, names, Console(file=text, width=120))
    line = next(line for line in text.getvalue().splitlines() if "Slotdeck" in line)
    assert (" 2.00 │" in line) == (speed is not None)
    assert ("–" in line) == (speed is None)
