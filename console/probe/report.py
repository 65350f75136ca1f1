"""A probe's result as text: the verdicts, the numbers behind them, and what to change."""

from __future__ import annotations

import dataclasses
from typing import Any

from slotdeck.console.drawing.cells import clean
from slotdeck.console.load.tally import duration
from slotdeck.console.probe.cut import Cut
from slotdeck.console.probe.judge import Pair, Slots
from slotdeck.console.probe.run import ProbeReport

PARALLEL = {
    "slotdeck": "use more slots (`--slots` or key s); in mode serial, switch to `--mode continuous` (key m)",
    "ollama": "set OLLAMA_NUM_PARALLEL above 1 in the service's environment; some model families stay at 1",
    "llamacpp": "set -np above 1 and multiply -c by it, because -c is divided among the slots",
    "vllm": "set --max-num-seqs above 1",
}
CONTEXT = {
    "ollama": "set OLLAMA_CONTEXT_LENGTH, or num_ctx of the model, to what your longest conversation needs",
}
COLUMN = 14


def found_wrong(report: ProbeReport) -> bool:
    """True if requests queue or prompts are cut, which a setting would change."""
    queued = report.pair is not None and report.pair.verdict == "queued"
    return queued or (report.cut is not None and report.cut.verdict == "cut silently")


def measured(report: ProbeReport) -> bool:
    """True if the two simultaneous requests could be judged."""
    return report.pair is not None and report.pair.verdict != "unclear"


def as_json(report: ProbeReport) -> dict[str, Any]:
    """The whole report as JSON; times are in seconds."""
    return dataclasses.asdict(report)


def as_text(report: ProbeReport) -> str:
    """The report as lines of text."""
    api = "its own API, without /v1" if report.api == "ollama" else "OpenAI API"
    who = f", {report.server}" if report.server else ""
    lines = [("server", f"{report.url}  {report.model}{who}, {api}")]
    lines.append(("warm-up", f"first text after {duration(report.warm_up)}"))
    lines += _pair_lines(report.pair)
    lines += _slot_lines(report.slots, report.pair)
    lines += _cut_lines(report.cut)
    lines += [("note", note) for note in report.notes]
    lines += [("change", advice) for advice in _advice(report)]
    lines.append(("sent", f"{report.requests} requests in {report.seconds:.0f} s"))
    return "\n".join(f"{name:<{COLUMN}}{clean(text)}".rstrip() for name, text in lines)


def _rate(value: float | None) -> str:
    return "– tok/s" if value is None else f"{value:.0f} tok/s" if value >= 9.95 else f"{value:.1f} tok/s"


def _pair_lines(pair: Pair | None) -> list[tuple[str, str]]:
    if pair is None:
        return [("two at once", "not measured")]
    alone = ("", f"alone: first text after {duration(pair.alone_first)}, {_rate(pair.alone_rate)}")
    if not pair.firsts:
        return [("two at once", "UNCLEAR: at least one was not answered"), alone]
    if pair.buffered:
        ends = " and ".join(duration(last) for last in pair.lasts)
        return [
            ("two at once", f"{pair.verdict.upper()}, judged by the ends only, because texts arrive in one piece"),
            ("", f"together: ends after {ends}, {pair.gain or 0:.2f} times the speed of one alone"),
        ]
    firsts = " and ".join(duration(first) for first in pair.firsts)
    rates = " and ".join(_rate(rate) for rate in pair.rates)
    if pair.verdict == "queued":
        idle = pair.firsts[1] - pair.lasts[0]
        return [
            ("two at once", "QUEUED: the second answer began only when the first was done"),
            alone,
            ("", f"together: first texts after {firsts}; the first was done after {duration(pair.lasts[0])}, "
                 f"{duration(idle)} before the second began"),
        ]  # fmt: skip
    both = f"together: first texts after {firsts}, {rates}"
    if pair.verdict == "unclear":
        share = f"{pair.together:.0%} of the shorter one" if pair.together is not None else "for an unknown time"
        return [("two at once", f"UNCLEAR: both were written at the same time for {share}"), alone, ("", both)]
    gain = pair.gain or 0.0
    each = f", each at {gain / 2:.0%} of the speed alone"
    if pair.verdict == "batched":
        head = f"BATCHED: both ran, together {gain:.2f} times as fast as one alone"
    else:
        head = f"SHARING BANDWIDTH: both ran, together only {gain:.2f} times as fast as one alone"
    return [("two at once", head), alone, ("", both + each)]


def _slot_lines(slots: Slots | None, pair: Pair | None) -> list[tuple[str, str]]:
    if slots is None:
        return [("slots", "not measured")]
    refused = f"{slots.refused} refused with 503" if slots.refused else "no 503"
    others = f", {slots.failed} failed" if slots.failed else ""
    if slots.at_once is None:
        return [("slots", f"– ({slots.answered} of {slots.sent} answered, {refused}{others})")]
    many = "at least " if slots.at_least else ""
    lines = [
        ("slots", f"{many}{slots.at_once} in effect: of {slots.sent} sent at once {slots.at_once} were written at the "
                  f"same time, {refused}{others}"),
    ]  # fmt: skip
    if slots.later:
        lines.append(
            (
                "",
                f"{slots.later} began only after another one had ended, the first of them after {duration(slots.wait)}",
            )
        )
    if pair is not None and pair.verdict == "queued" and slots.at_once > 1:
        lines.append(
            ("", "two at once still queued: the server runs whole batches, so a request that comes a moment late waits")
        )
    return lines


def _cut_lines(cut: Cut | None) -> list[tuple[str, str]]:
    if cut is None:
        return [("long prompts", "not tried")]
    told = f"the server reports a context of {cut.told} tokens" if cut.told else "the server reports no context"
    last = cut.prompts[-1] if cut.prompts else None
    if cut.verdict == "cut silently" and last is not None:
        if cut.kept is not None:
            head = f"CUT SILENTLY: the server counts {cut.kept} of {last.expected} tokens, and answers without an error"
        else:
            head = f"CUT SILENTLY: with about {last.expected} tokens the code word at the beginning is lost"
    elif cut.verdict == "refused" and last is not None:
        head = f"refused, not cut: HTTP {last.status} at {last.expected} tokens"
    elif cut.verdict == "read whole" and last is not None:
        head = f"read completely, up to {last.expected} tokens"
    else:
        head = "UNCLEAR" + (f": {last.reason}" if last is not None and last.reason else "")
    lines = [("long prompts", head), ("", told)]
    for prompt in cut.prompts:
        counted = "–" if prompt.counted is None else str(prompt.counted)
        what = (
            (prompt.reason or "refused") if prompt.reason else f"counted {counted}, first text {duration(prompt.first)}"
        )
        word = {True: ", code word repeated", False: ", code word lost", None: ""}[prompt.repeated]
        lines.append(("", f"sent {prompt.expected} tokens: {what}{word}"))
    if cut.note:
        lines.append(("", cut.note))
    return lines


def _advice(report: ProbeReport) -> list[str]:
    found = []
    kind = report.server or ""
    if report.pair is not None and report.pair.verdict == "queued":
        found.append(PARALLEL.get(kind, "raise the server's setting for parallel requests"))
    if report.pair is not None and report.pair.verdict == "sharing bandwidth":
        found.append("no setting helps: the machine's bandwidth is the limit; use a smaller model or fewer bits")
    if report.cut is not None and report.cut.verdict == "cut silently":
        found.append(CONTEXT.get(kind, "use a larger context"))
    return found
