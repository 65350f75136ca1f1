"""The doctor: from a window of frames to what is wrong, the evidence in numbers, and what to turn.

Each rule looks for one cause of slowness that an admin can do something about, and says nothing when it does not
hold. A rule that explains what another one saw silences it. What this engine cannot have, a prompt that was cut or
layers that spilled to the CPU, no rule looks for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby
from math import inf

from slotdeck.console.advice.finding import Finding
from slotdeck.console.advice.rules_memory import os_swap, preemption
from slotdeck.console.advice.rules_service import cold_start, context, died, fault, refused
from slotdeck.console.advice.rules_speed import budget, decode, prefill
from slotdeck.console.advice.rules_waiting import deep_queue, queue
from slotdeck.console.advice.window import Window
from slotdeck.engine.telemetry.frame import Frame

RULES: tuple[Callable[[Window], Finding | None], ...] = (
    died, fault, os_swap, preemption, queue, refused, prefill, decode, budget, deep_queue, context, cold_start,
)  # fmt: skip

SILENCES = {"os_swap": ("decode", "budget", "prefill"), "preemption": ("budget",), "decode": ("prefill",)}
"""A cause, and what it makes the other rules see."""


def diagnose(frames: Sequence[Frame], over: bool = False) -> list[Finding]:
    """All findings: critical ones first, then by what they cost the users; none when all is well or nothing is known.

    What costs more than time, an answer that was never given, comes before what costs seconds.

    While a change of settings is too young to be judged, what was before it is: see :func:`window.too_early`.
    ``over``: no frame follows the last one, because its engine is no more. Of engines before the last one, what that
    one does not have itself is told too.
    """
    if not frames:
        return []
    *earlier, _ = ([*run] for _, run in groupby(frames, key=lambda frame: frame.boot_id))
    findings = _found(Window(frames, over))
    for run in reversed(earlier):
        for rule, finding in _found(Window(run)).items():
            findings.setdefault(rule, _of_before(finding, run[-1]))
    return sorted(findings.values(), key=_rank)


def _found(window: Window) -> dict[str, Finding]:
    """What the rules say, by rule."""
    findings = {rule.__name__: finding for rule in RULES if (finding := rule(window)) is not None}
    for cause, explained in SILENCES.items():
        if cause in findings:
            for rule in explained:
                findings.pop(rule, None)
    limits = window.last.limits
    return {
        rule: replace(finding, before={name: getattr(limits, name) for name in finding.changes})
        for rule, finding in findings.items()
    }


def _of_before(finding: Finding, last: Frame) -> Finding:
    """A finding about an engine that is no more: the one of now may be set otherwise, so nothing is to be turned."""
    ended = time.strftime("%H:%M:%S", time.localtime(last.time))
    evidence = (*finding.evidence, f"that was before the restart at {ended}")
    return replace(finding, evidence=evidence, changes={})


def _rank(finding: Finding) -> tuple[bool, float]:
    return finding.level != "critical", -inf if finding.cost is None else -finding.cost
