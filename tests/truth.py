"""How true are the simulator's predictions? The same scripted traffic, simulated and really served.

    python -m tests.truth [--runs 3] [--json FILE]

2, 5 and 20 users in three modes of batching; each run of all takes about five minutes. Three predictions are printed
beside the measurement:

- *card*: from the saved calibration of this machine (`slotdeck bench --calibrate`), measured at another time;
- *others*: from the steps of all other cases of this very bench, so that a machine that became faster or slower since
  the calibration was made is not taken for an error of the model;
- *own*: from the steps of the case itself, so that only what the simulator does with them can be wrong.

MeasuredService is the median of the runs, by the engine's own clock; predicted the median over some seeds.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

from slotdeck.console.advice.calibration import Calibration, CalibrationError
from slotdeck.console.advice.recorded import simulate
from slotdeck.console.advice.step_model import StepModelError, fit
from slotdeck.console.advice.traffic import Shape, Traffic, User
from slotdeck.console.bench.calibrate import CALIBRATION_SETTINGS, calibrate
from slotdeck.console.bench.calibration_file import newest_calibration, save_calibration
from slotdeck.console.bench.machine import describe_machine
from slotdeck.console.bench.verify import MeasuredService, verify
from slotdeck.engine.configuration import load_settings
from slotdeck.engine.settings import LiveSettings

CONTEXT = 1024
SLOTS = 8
SECONDS = 20.0
SHORT = Shape((0, 0), (0, 1), (60, 200), (30, 80), (20, 60), (2, 6))
"""Agents that never pause, with answers short enough for 20 of them to be served one after another in half a minute."""
CASES = [(users, mode) for users in (2, 5, 20) for mode in ("continuous", "static", "serial")]
SEEDS = 5
COMPARED = ("ttft_p95", "itl_p95", "tokens_per_second")


def settings_of(mode: str) -> LiveSettings:
    return LiveSettings(slots=SLOTS, context=CONTEXT, queue=64, budget=64, kv_tokens=SLOTS * CONTEXT, mode=mode)


def traffic_of(users: int) -> Traffic:
    return Traffic("agent", users, SECONDS, CONTEXT, seed=users, shape=SHORT)


def predicted(calibration: Calibration, users: int, mode: str, seeds: int = SEEDS) -> dict[str, float]:
    """The middle of some seeds, of each number that is compared."""
    traffic, outcomes = traffic_of(users), []
    for seed in range(seeds):
        scripts = [User(name, traffic.script(number), SECONDS) for number, name in enumerate(traffic.names())]
        outcomes.append(simulate(scripts, settings_of(mode), calibration, seed))
    return {name: median(getattr(outcome, name) for outcome in outcomes) for name in COMPARED}


def refitted(calibration: Calibration, runs: Iterable[MeasuredService]) -> Calibration:
    """The calibration with the served steps of these runs; as it was when they are too few."""
    try:
        return calibration.model_copy(update={"served": fit([sample for one in runs for sample in one.samples])})
    except StepModelError:
        return calibration


def measured(calibration: Calibration, users: int, mode: str) -> MeasuredService:
    start = load_settings({name: getattr(settings_of(mode), name) for name in
                           ("slots", "context", "queue", "budget", "kv_tokens", "mode")})  # fmt: skip
    return verify(start, traffic_of(users), calibration.wording, lambda _text: None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=3, help="of each case; the median is compared")
    parser.add_argument("--json", type=Path, help="write settings, calibration and measurements to this file")
    arguments = parser.parse_args()
    try:
        calibration = newest_calibration()
    except CalibrationError:
        calibration = calibrate(load_settings(CALIBRATION_SETTINGS), print)
        save_calibration(calibration)
    found: dict[tuple[int, str], list[MeasuredService]] = {case: [] for case in CASES}
    try:
        for turn in range(arguments.runs):
            for users, mode in CASES:
                found[users, mode].append(measured(calibration, users, mode))
                busy = found[users, mode][-1].others
                print(f"run {turn + 1}: {users} users {mode}; other programs kept {busy:.1f} cores busy", flush=True)
    except KeyboardInterrupt:
        print("stopped; what was measured so far:")
    found = {case: runs for case, runs in found.items() if runs}
    document = report(calibration, found)
    if arguments.json:
        arguments.json.write_text(json.dumps(document, indent=1) + "\n", "utf-8")


def report(calibration: Calibration, found: dict[tuple[int, str], list[MeasuredService]]) -> dict[str, Any]:
    """Print the table; gives what the test of orders is fed with."""
    heads = f"{'measured':>9} {'runs':>17}" + "".join(f"{name:>8} {'off':>5}" for name in ("card", "others", "own"))
    print(f"\n{'users':>5} {'mode':<11}{'':<18} {heads}")
    rows = []
    for (users, mode), runs in found.items():
        rest = [one for case, its in found.items() if case != (users, mode) for one in its]
        calibrations = {"card": calibration, "others": refitted(calibration, rest), "own": refitted(calibration, runs)}
        guesses = {name: predicted(which, users, mode) for name, which in calibrations.items()}
        row: dict[str, Any] = {"users": users, "mode": mode, "others_busy": [round(one.others, 2) for one in runs]}
        for name in COMPARED:
            values = [value for one in runs if (value := getattr(one, name)) is not None]
            truth = median(values)
            scale, unit = (1.0, "") if name == "tokens_per_second" else (1000.0, " ms")
            cells = [f"{scale * guess[name]:>8.1f} {guess[name] / truth - 1:>+5.0%}" for guess in guesses.values()]
            span = f"{scale * min(values):.1f} – {scale * max(values):.1f}"
            print(f"{users:>5} {mode:<11}{name + unit:<18} {scale * truth:>9.1f} {span:>17}{''.join(cells)}")
            row[name] = {"measured": values} | {which: guess[name] for which, guess in guesses.items()}
        rows.append(row)
    everything = [one for its in found.values() for one in its]
    return {
        "measured": time.strftime("%Y-%m-%d %H:%M"),
        "machine": describe_machine(),
        "card": refitted(calibration, everything).model_dump(),
        "rows": rows,
    }


if __name__ == "__main__":
    main()
