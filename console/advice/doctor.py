"""The doctor: reads a window of frames and reports what is wrong, the evidence in numbers, and the remedy.

Each rule looks for one cause of slowness that an admin can do something about. A rule whose cause explains what other
rules see silences them. No rule looks for problems that this engine cannot have, such as prompts that are cut silently
or layers that run on the CPU because the GPU is full.
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
"""A cause, and the rules that would only see its consequences."""


def diagnose(frames: Sequence[Frame], engine_gone: bool = False) -> list[Finding]:
    """All findings, or none if all is well or nothing is known.

    Critical findings come first, then those that cost the users most. A lost answer costs more than any lost time.

    ``frames`` are in order of time. Just after a change of settings, the time before it is examined: see
    :func:`window.seconds_since_change`. ``engine_gone``: the engine of the last frame has ended, so that no frame
    follows. Findings from before the last restart are listed too, marked as such, unless the engine that runs now has
    a finding of the same rule.
    """
    if not frames:
        return []
    *earlier, _ = ([*run] for _, run in groupby(frames, key=lambda frame: frame.boot_id))
    findings = _findings(Window(frames, engine_gone))
    for run in reversed(earlier):
        for rule, finding in _findings(Window(run)).items():
            findings.setdefault(rule, _before_restart(finding, run[-1]))
    return sorted(findings.values(), key=_rank)


def _findings(window: Window) -> dict[str, Finding]:
    """The findings of one window by rule, without those that another one explains."""
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


def _before_restart(finding: Finding, last: Frame) -> Finding:
    """A finding about an engine that has ended. It proposes no change: the engine of now may have other settings."""
    ended = time.strftime("%H:%M:%S", time.localtime(last.time))
    evidence = (*finding.evidence, f"this was before the restart at {ended}")
    return replace(finding, evidence=evidence, changes={})


def _rank(finding: Finding) -> tuple[bool, float]:
    return finding.level != "critical", -inf if finding.cost is None else -finding.cost
