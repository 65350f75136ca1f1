"""The result of a search as text in 80 columns, and as JSON."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from statistics import median
from typing import TYPE_CHECKING, Any

from slotdeck.console.advice.calibration import MAX_OTHERS, Calibration, busy_warning
from slotdeck.console.advice.search import Goals, SearchResult, Trial

if TYPE_CHECKING:
    from slotdeck.console.bench.verify import MeasuredService

COLUMNS = 80
SHOWN = 8
COMPARED = (
    ("TTFT p95", "ttft_p95", True),
    ("ITL p95", "itl_p95", True),
    ("tokens/s", "tokens_per_second", False),
)


def search_text(
    found: SearchResult, calibration: Calibration, traffic: str, seconds: float, now: Trial | None = None
) -> list[str]:
    """What was tried, what is best and why, and what the settings in force (``now``) would give."""
    goals = found.goals
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(calibration.measured))
    lines = _wrapped("traffic  ", traffic)
    lines += _wrapped(
        "speed    ",
        f"{calibration.model} {calibration.weights}, KV {calibration.kv_dtype}, {calibration.device}, "
        f"{calibration.threads} threads, measured {when}",
    )
    if (warning := busy_warning(calibration)) is not None:
        lines += _wrapped("warning  ", warning)
    lines += _wrapped("goals    ", f"{goals_words(goals)}, no preemptions, no refusals")
    requests = found.requests
    lines += _wrapped(
        "tried    ",
        f"{len(found.tried) + found.refusing} settings with {found.simulated} runs ({requests:,} requests in "
        f"{seconds:.0f} s); the result of the others follows from these"
        + (f", or they are sure to refuse requests ({found.refusing})" if found.refusing else ""),
    )
    lines += ["", "best trade-offs: no other setting is better in everything"]
    lines.append(f"  {'slots':>5} {'budget':>6} {'queue':>5} {'context':>7} {'pool':>6}  {_HEAD}")
    choice = found.choice
    frontier = found.frontier()
    shown = frontier[:SHOWN]
    if choice is not None and choice not in shown:
        shown = [choice, *shown[: SHOWN - 1]]
    lines += [_row(tried, tried is choice) for tried in shown]
    if now is not None:
        lines += ["  in force now", _row(now, False)]
    if len(frontier) > len(shown):
        lines.append(f"  and {len(frontier) - len(shown)} more; --json has them all")
    if choice is not None:
        lines.append("")
        lines += _wrapped("choice   ", f"{setting_words(choice)}: {reason(found)}")
        lines += [_wrapped("         ", text)[0] for text in neighbours(found)]
        settings = choice.settings
        mode = "" if settings.mode == "continuous" else f" --mode {settings.mode}"
        lines += [
            "",
            f"slotdeck serve --slots {settings.slots} --context {settings.context} --queue {settings.queue} \\",
        ]
        lines.append(f"  --budget {settings.budget} --kv-tokens {settings.kv_tokens}{mode}")
    return lines


_HEAD = f"{'TTFT p95':>8} {'ITL p95':>8} {'tok/s':>6} {'preempt':>7} {'503':>4}"


def _row(tried: Trial, chosen: bool) -> str:
    s = tried.settings
    rate = "–" if tried.tokens_per_second is None else f"{tried.tokens_per_second:.1f}"
    mode = "" if s.mode == "continuous" else f" {s.mode}"
    return (
        f"{'>' if chosen else ' '} {s.slots:>5} {s.budget:>6} {s.queue:>5} {s.context:>7} {s.kv_tokens:>6}  "
        f"{duration(tried.ttft_p95):>8} {duration(tried.itl_p95):>8} {rate:>6} {tried.preemptions:>7} "
        f"{tried.refused:>4}{mode}"
    )


def goals_words(goals: Goals) -> str:
    return f"TTFT p95 {duration(goals.ttft_p95)}, ITL p95 {duration(goals.itl_p95)}"


def setting_words(tried: Trial) -> str:
    s = tried.settings
    return f"slots {s.slots}, budget {s.budget}, queue {s.queue}, context {s.context}, pool {s.kv_tokens}"


def reason(found: SearchResult) -> str:
    """One sentence that explains the choice."""
    choice, goals = found.choice, found.goals
    assert choice is not None
    misses = choice.misses(goals)
    if misses:
        return (
            f"no setting reaches all goals; this one comes closest, with TTFT p95 {duration(choice.ttft_p95)} and ITL "
            f"p95 {duration(choice.itl_p95)}, and misses {' and '.join(misses)}"
        )
    spare = 1 - choice.score(goals)
    return (
        f"{len(found.kept)} settings reach all goals; this one stays {spare:.0%} below the tighter limit, and is the "
        "smallest of those that do about as well"
    )


def neighbours(found: SearchResult) -> list[str]:
    """What one step up or down would do, for slots and budget."""
    choice = found.choice
    assert choice is not None
    lines = []
    for name in ("slots", "budget"):
        mine = getattr(choice.settings, name)
        for step in (-1, 1):
            values = sorted({getattr(tried.settings, name) for tried in found.tried})
            place = values.index(mine) + step
            if not 0 <= place < len(values):
                continue
            other = _nearest(found, choice, name, values[place])
            if other is not None:
                lines.append(
                    f"{name} {values[place]}: TTFT p95 {duration(other.ttft_p95)}, ITL p95 {duration(other.itl_p95)}"
                    + (f", {other.preemptions} preempted" if other.preemptions else "")
                    + (f", {other.refused} refused" if other.refused else "")
                )
    return lines


def _nearest(found: SearchResult, choice: Trial, name: str, value: int) -> Trial | None:
    """The trial that differs in ``name`` only, with the most similar pool."""
    want = choice.settings
    same = [
        tried
        for tried in found.tried
        if getattr(tried.settings, name) == value
        and all(
            getattr(tried.settings, other) == getattr(want, other)
            for other in ("slots", "budget", "queue", "context", "mode")
            if other != name
        )
    ]
    return min(same, key=lambda tried: abs(tried.settings.kv_tokens - want.kv_tokens), default=None)


def verify_text(title: str, tried: Trial, measured: Sequence[MeasuredService]) -> list[str]:
    """Predicted and measured values; for several runs the median and the range."""
    lines = [f"{title}: {setting_words(tried)}", f"  {'':<10} {'predicted':>10} {'measured':>10} {'off by':>7}  runs"]
    for label, name, is_time in COMPARED:
        predicted = getattr(tried, name)
        values = [value for one in measured if (value := getattr(one, name)) is not None]
        show = duration if is_time else _rate
        got = median(values) if values else None
        off = "–" if got is None or not predicted else f"{predicted / got - 1:+.0%}"
        runs = f"{show(min(values))} to {show(max(values))}" if len(values) > 1 else str(len(values))
        lines.append(f"  {label:<10} {show(predicted):>10} {show(got):>10} {off:>7}  {runs}")
    others = max(one.others for one in measured)
    if others > MAX_OTHERS:
        lines += _wrapped("  warning  ", f"other programs kept up to {others:.1f} cores busy during the runs")
    counts = [(one.preemptions, one.rejected) for one in measured]
    lines.append(
        f"  {'preempted':<10} {tried.preemptions:>10} {median(pair[0] for pair in counts):>10.0f}\n"
        f"  {'503':<10} {tried.refused:>10} {median(pair[1] for pair in counts):>10.0f}"
    )
    return lines


def search_json(
    found: SearchResult,
    calibration: Calibration,
    traffic: str,
    verified: dict[str, Sequence[MeasuredService]],
    now: Trial | None,
) -> dict[str, Any]:
    """The whole result, unrounded."""
    return {
        "traffic": traffic,
        "calibration": calibration.key,
        "goals": asdict(found.goals),
        "tried": len(found.tried) + found.refusing,
        "sure_to_refuse": found.refusing,
        "simulated": found.simulated,
        "choice": None if found.choice is None else tried_json(found.choice),
        "runner_up": None if found.runner_up is None else tried_json(found.runner_up),
        "now": None if now is None else tried_json(now),
        "frontier": [tried_json(tried) for tried in found.frontier()],
        "verified": {name: [_measured_json(one) for one in runs] for name, runs in verified.items()},
    }


def tried_json(tried: Trial) -> dict[str, Any]:
    values = asdict(tried)
    values["settings"] = tried.settings.model_dump()
    return values


def _measured_json(measured: MeasuredService) -> dict[str, Any]:
    return asdict(replace(measured, samples=()))


def duration(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"


def _rate(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def _wrapped(head: str, text: str) -> list[str]:
    return textwrap.wrap(text, COLUMNS, initial_indent=head, subsequent_indent=" " * 9, break_on_hyphens=False)
