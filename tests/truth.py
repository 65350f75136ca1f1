"""How true are predictions? 2, 5 and 20 users in three modes: the same scripted traffic simulated and really served.

    python -m tests.truth [--runs 3] [--json FILE]

Takes some five minutes for each run of everything. Two predictions stand beside what was measured: *card*, from the
saved speed card of this machine (`slotdeck bench --card`), which was measured at another time; and *others*, from the
steps of all other cases of this very bench, never of the case itself, so that a machine that became faster or slower
since the card was made is not taken for an error of the simulator. Measured is the median of the runs, by the engine's
own clock.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from console.load.card import CARD_SETTINGS, measure_card
from console.load.machine import describe_machine
from console.load.verify import Measured, verify
from engine.advice.recorded import simulate
from engine.advice.simulator import Outcome, User
from engine.advice.speed_card import SpeedCard, SpeedCardError, newest_card, save_card
from engine.advice.step_model import StepModelError, fit
from engine.advice.traffic import Shape, Traffic
from engine.settings import LiveSettings, load_settings

CONTEXT = 1024
SLOTS = 8
SECONDS = 20.0
SHORT = Shape((0, 0), (0, 1), (60, 200), (30, 80), (20, 60), (2, 6))
"""Agents that never pause, with answers short enough for 20 of them to be served one after another in half a minute."""
CASES = [(users, mode) for users in (2, 5, 20) for mode in ("continuous", "static", "serial")]
COMPARED = ("ttft_p95", "itl_p95", "tokens_per_second")


def settings_of(mode: str) -> LiveSettings:
    return LiveSettings(slots=SLOTS, context=CONTEXT, queue=64, budget=64, kv_tokens=SLOTS * CONTEXT, mode=mode)


def traffic_of(users: int) -> Traffic:
    return Traffic("agent", users, SECONDS, CONTEXT, seed=users, shape=SHORT)


def predicted(card: SpeedCard, users: int, mode: str) -> Outcome:
    traffic = traffic_of(users)
    scripts = [User(name, traffic.script(number), SECONDS) for number, name in enumerate(traffic.names())]
    return simulate(scripts, settings_of(mode), card)


def measured(card: SpeedCard, users: int, mode: str) -> Measured:
    start = load_settings({name: getattr(settings_of(mode), name) for name in
                           ("slots", "context", "queue", "budget", "kv_tokens", "mode")})  # fmt: skip
    return verify(start, traffic_of(users), card.wording, lambda _text: None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=3, help="of each case; the median is compared")
    parser.add_argument("--json", type=Path, help="write settings, card and measurements to this file")
    arguments = parser.parse_args()
    try:
        card = newest_card()
    except SpeedCardError:
        card = measure_card(load_settings(CARD_SETTINGS), print)
        save_card(card)
    found: dict[tuple[int, str], list[Measured]] = {case: [] for case in CASES}
    for turn in range(arguments.runs):
        for users, mode in CASES:
            found[users, mode].append(measured(card, users, mode))
            load = os.getloadavg()[0]
            print(f"run {turn + 1}: {users} users {mode}, load average {load:.1f}", flush=True)
    document = report(card, found)
    if arguments.json:
        arguments.json.write_text(json.dumps(document, indent=1) + "\n", "utf-8")


def report(card: SpeedCard, found: dict[tuple[int, str], list[Measured]]) -> dict[str, Any]:
    """Print the table; gives what the test of orders is fed with."""
    print(f"\n{'users':>5} {'mode':<11}{'':<18} {'measured':>9} {'runs':>17} {'card':>8} {'off':>5} ", end="")
    print(f"{'others':>8} {'off':>5}")
    rows = []
    for (users, mode), runs in found.items():
        others = [
            sample for case, its in found.items() if case != (users, mode) for one in its for sample in one.samples
        ]
        try:
            now = card.model_copy(update={"served": fit(others)})
        except StepModelError:
            now = card
        row: dict[str, Any] = {"users": users, "mode": mode}
        for name in COMPARED:
            values = [value for one in runs if (value := getattr(one, name)) is not None]
            truth = median(values)
            first, second = (getattr(predicted(which, users, mode), name) for which in (card, now))
            scale, unit = (1.0, "") if name == "tokens_per_second" else (1000.0, " ms")
            print(
                f"{users:>5} {mode:<11}{name + unit:<18} {scale * truth:>9.1f} "
                f"{f'{scale * min(values):.1f} – {scale * max(values):.1f}':>17} "
                f"{scale * first:>8.1f} {first / truth - 1:>+5.0%} {scale * second:>8.1f} {second / truth - 1:>+5.0%}"
            )
            row[name] = {"measured": values, "card": first, "others": second}
        rows.append(row)
    everything = [sample for its in found.values() for one in its for sample in one.samples]
    return {
        "measured": time.strftime("%Y-%m-%d %H:%M"),
        "machine": describe_machine(),
        "load": psutil.getloadavg(),
        "card": card.model_copy(update={"served": fit(everything)}).model_dump(),
        "rows": rows,
    }


if __name__ == "__main__":
    main()
