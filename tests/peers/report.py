"""The rounds of all servers as tables, and the targets that Slotdeck should reach."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from slotdeck.console.load.tally import duration
from tests.peers.measure import Point, Round

OURS, BASELINE = "slotdeck", "baseline"
MIN_RATIO = {"1": 1.6, "2": 1.6, "5": 1.6, "20": 1.4}
"""Wanted ratio of Slotdeck's tokens/s to the best peer's, by number of users."""
MARGIN_BYTES = 700 << 20
MIN_BANDWIDTH = 0.7


@dataclass(frozen=True)
class Facts:
    """Sizes in bytes, for the targets about memory."""

    packed_bytes: int
    """The weights that one decode step reads."""
    kept_bytes: int
    """The weights and the KV pool in memory."""


def merged(rounds: list[Round], load: str) -> Point | None:
    """One load over all rounds: medians, and the longest gap of all rounds."""
    points = [point for one in rounds for point in one.points if point.load == load]
    if not points:
        return None

    def middle(get: Callable[[Point], float | None]) -> float | None:
        values = [value for point in points if (value := get(point)) is not None]
        return statistics.median(values) if values else None

    return Point(
        load=load,
        tokens_per_second=middle(lambda point: point.tokens_per_second),
        ttft_p50=middle(lambda point: point.ttft_p50),
        ttft_p95=middle(lambda point: point.ttft_p95),
        itl_p50=middle(lambda point: point.itl_p50),
        itl_p95=middle(lambda point: point.itl_p95),
        itl_max=max((point.itl_max for point in points if point.itl_max is not None), default=None),
        generated=sum(point.generated for point in points),
        prompt=sum(point.prompt for point in points),
        errors=dict(sum((Counter(point.errors) for point in points), Counter())),
    )


def loads_of(results: dict[str, list[Round]]) -> list[str]:
    """The loads that were measured, in order."""
    return list(dict.fromkeys(point.load for rounds in results.values() for one in rounds for point in one.points))


def best_peer(
    results: dict[str, list[Round]], load: str, get: Callable[[Point], float | None], most: bool
) -> float | None:
    """The largest or the smallest value at a load, of the peers that answered every request."""
    points = [merged(rounds, load) for name, rounds in results.items() if name not in (OURS, BASELINE)]
    whole = [point for point in points if point is not None and not point.errors]
    values = [value for point in whole if (value := get(point)) is not None]
    return (max(values) if most else min(values)) if values else None


def print_tables(results: dict[str, list[Round]], names: dict[str, str], console: Console) -> None:
    """Print one table for each load."""
    for load in loads_of(results):
        best = best_peer(results, load, lambda point: point.tokens_per_second, most=True)
        heading = (
            f"{load} user{'' if load == '1' else 's'}, prefix cache off"
            if load != "chat"
            else "chat, 5 users, cache on"
        )
        table = Table(title=heading, title_justify="left")
        for column in ("server", "tok/s", "of the best peer", "TTFT p50", "p95", "ITL p50", "p95", "max", "errors"):
            table.add_column(column, justify="left" if column == "server" else "right")
        for name, rounds in results.items():
            point = merged(rounds, load)
            if point is None:
                continue
            speed = point.tokens_per_second
            table.add_row(
                names[name],
                "–" if speed is None else f"{speed:.1f}",
                "–" if speed is None or not best else f"{speed / best:.2f}",
                *(duration(value) for value in (point.ttft_p50, point.ttft_p95, point.itl_p50, point.itl_p95)),
                duration(point.itl_max),
                str(sum(point.errors.values())),
            )
        console.print(table)


def targets(results: dict[str, list[Round]], facts: Facts) -> list[dict[str, Any]]:
    """Each target that these rounds can judge: the target, what was found, and whether it is reached."""
    found: list[dict[str, Any]] = []

    def judge(name: str, value: float | None, limit: float | None, at_least: bool, unit: str = "") -> None:
        if value is None or limit is None:
            return
        reached = value >= limit if at_least else value <= limit
        word, digits = "at least" if at_least else "at most", ".0f" if limit >= 100 else ".3g"
        found.append(
            {"target": f"{name}: {word} {limit:{digits}}{unit}", "found": f"{value:{digits}}{unit}", "reached": reached}
        )

    ours = {load: merged(results.get(OURS, []), load) for load in loads_of(results)}
    for load, ratio in MIN_RATIO.items():
        best, mine = best_peer(results, load, lambda point: point.tokens_per_second, most=True), ours.get(load)
        if best and mine is not None and mine.tokens_per_second is not None:
            judge(f"tokens/s at {load} users over the best peer", mine.tokens_per_second / best, ratio, True, " x")
    many = ours.get("20")
    if many is not None:
        ttft = best_peer(results, "20", lambda point: point.ttft_p95, most=False)
        judge("p95 TTFT at 20 users, as the best peer's", many.ttft_p95, ttft, False, " s")
        for name in ("vllm", "llama.cpp-q8", "llama.cpp-q4"):
            theirs = merged(results.get(name, []), "20")
            if theirs is None:
                continue
            if name == "vllm" and theirs.itl_p95 is not None:
                judge("p95 ITL at 20 users, 0.6 of vLLM's", many.itl_p95, 0.6 * theirs.itl_p95, False, " s")
            if theirs.itl_max is not None:
                judge(f"longest pause at 20 users, a tenth of {name}'s", many.itl_max, theirs.itl_max / 10, False, " s")
        pause = best_peer(results, "20", lambda point: point.itl_max, most=False)
        if pause is not None:
            judge("longest pause at 20 users, half of the best peer's", many.itl_max, pause / 2, False, " s")
    # Round by round, because a shared machine reads at 50 GB/s in one minute and at 80 GB/s in the next.
    shares = [
        facts.packed_bytes / point.itl_p50 / one.bandwidth
        for one in results.get(OURS, [])
        for point in one.points
        if point.load == "1" and point.itl_p50 and one.bandwidth
    ]
    if shares:
        judge("bandwidth that decoding for 1 user uses", statistics.median(shares), MIN_BANDWIDTH, True)
    resident = max((one.resident_bytes for one in results.get(OURS, [])), default=0)
    if resident:
        judge("resident memory", resident / 2**20, (facts.kept_bytes + MARGIN_BYTES) / 2**20, False, " MiB")
    return found
