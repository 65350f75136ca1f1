"""A plan as lines: the inputs beside what fits, then advised settings, then verdicts. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from slotdeck.console.advice.forecast import ServiceForecast
from slotdeck.console.advice.plan import Plan
from slotdeck.console.advice.units import about, bytes_text
from slotdeck.console.drawing import formats
from slotdeck.console.drawing.cells import UNKNOWN, Line, Span, beside, clean, exact, left, right, wrap
from slotdeck.console.keys.actions import SETTING_KEYS
from slotdeck.console.planning.form import FIELDS, Form, origin, shown
from slotdeck.console.settings.values import shown as setting_shown
from slotdeck.engine.telemetry.frame import LimitInfo

FORM_CELLS = 39
FACT_CELLS = 39
"""Smallest width of the column beside the inputs. On narrower terminals it comes below them."""
ROWS = len(FIELDS) + 1
"""Rows of the upper part."""
_LABEL, _VALUE = 12, 12


def upper_lines(plan: Plan, form: Form, place: int, width: int) -> list[Line]:
    """The inputs and, if there is room beside them, what fits: ROWS lines."""
    inputs, end = _inputs(plan, form, place), width - FORM_CELLS - 1
    if end < FACT_CELLS:
        return [exact(line, width) for line in inputs]
    return beside(inputs, _facts(plan, end), FORM_CELLS, end)


def fact_lines(plan: Plan, width: int) -> list[Line]:
    """What fits, if there was no room for it beside the inputs."""
    return _facts(plan, width) if width - FORM_CELLS - 1 < FACT_CELLS else []


def _inputs(plan: Plan, form: Form, place: int) -> list[Line]:
    lines = [exact([(" people and machine", "title")], FORM_CELLS)]
    for number, one in enumerate(FIELDS):
        here = number == place
        value = shown(one.name, form, plan)
        style = "label" if value == UNKNOWN else "value"
        spans: list[Span] = [
            (" › " if here else "   ", "key"),
            (left(one.label, _LABEL), "title" if here else "text"),
            (right(value, _VALUE), "key" if here else style),
            (f" {origin(one.name, form, plan)}", "label"),
        ]
        lines.append(exact(spans, FORM_CELLS))
    return lines


def _facts(plan: Plan, width: int) -> list[Line]:
    question, capacity, load = plan.question, plan.capacity, plan.load
    model, kv = question.model, question.kv_dtype
    scales = model.scale_bytes(kv)
    used = f" x {question.memory.utilisation:g}" if question.memory.gpu else ""
    weights = UNKNOWN if model.weight_bytes is None else bytes_text(model.weight_bytes)
    rows = [
        ("weights", f"{weights}{f' {clean(model.weights)}' if model.weights else ''}"),
        ("usable", f"{bytes_text(question.memory.usable)}{used}"),
        ("one token", f"{model.kv_bytes(kv):,} B {clean(kv)}{f' + {scales:,}' if scales else ''}"),
        ("conversation", f"{capacity.context:,} tok = {bytes_text(capacity.conversation_bytes)}"),
        ("cache", f"{bytes_text(capacity.cache_bytes)} = {capacity.cache_tokens:,} tok"),
        ("fits", about(capacity.conversations)),
        ("in flight", f"{load.in_flight:.3g} of {load.users}"),
        ("wants", f"{plan.wanted_slots} slots, {plan.wanted_slots * capacity.context:,} tok"),
    ]  # fmt: skip
    lines = [exact([(" what fits", "title")], width)]
    for label, text in rows:
        strong = "title" if label in ("fits", "in flight") else "value"
        if label == "fits" and capacity.conversations < plan.wanted_slots:
            strong = "warn"
        lines.append(exact([(f" {label:<13}", "label"), (text, strong)], width))
    return lines


def setting_lines(plan: Plan, limits: LimitInfo, width: int) -> list[Line]:
    """The advised settings beside those in force, each with its reason."""
    lines: list[Line] = []
    if plan.settings:
        head = f" {'set':<11}{'now':>9}{'':>3}{'advised':<9}"
        lines.append(exact([(head, "label"), ("a applies them, u undoes it", "label")], width))
    for one in plan.settings:
        now = getattr(limits, one.name, None)
        differs = now != one.value
        key = SETTING_KEYS.get(one.name, " ")
        start: list[Span] = [
            (f" {key} ", "key"),
            (left(one.name, 9), "text"),
            (right(setting_shown(one.name, now), 9), "value"),
            (" → " if differs else " = ", "label"),
            (left(formats.whole(one.value), 9), "title" if differs else "value"),
        ]
        lines += _hanging(start, 33, one.reason, "label", width)
    return lines


def verdict_lines(plan: Plan, width: int) -> list[Line]:
    """Verdicts, the worst first, and what was assumed."""
    lines: list[Line] = []
    for verdict in plan.verdicts:
        mark = {"critical": " ! ", "warn": " - ", "ok": "   "}[verdict.level]
        lines += _hanging([(mark, verdict.level)], 3, verdict.text, verdict.level if mark.strip() else "text", width)
    for text in (*(f"Assumed: {one}." for one in plan.assumed), *plan.question.model.notes):
        lines += _hanging([("   ", "text")], 3, text, "label", width)
    return lines


def simulation_lines(expected: Sequence[ServiceForecast], width: int) -> list[Line]:
    """The simulated results of the current and of the advised settings."""
    head = f" {'simulated':<12}{'TTFT p95':>9}{'ITL p95':>9}{'tok/s':>7}{'preempted':>11}{'refused':>9}{'served':>8}"
    lines = [exact([(head, "label")], width)]
    for name, one in zip(("current", "advised"), expected, strict=True):
        spans: list[Span] = [
            (f" {name:<12}", "text"),
            (right(formats.seconds(one.ttft_p95), 9), "value"),
            (right(formats.gap(one.itl_p95), 9), "value"),
            (right(formats.rate(one.tokens_per_second), 7), "value"),
            (right(formats.count(one.preemptions), 11), "warn" if one.preemptions else "value"),
            (right(formats.count(one.refused), 9), "warn" if one.refused else "value"),
            (right(formats.count(one.finished), 8), "value"),
        ]
        lines.append(exact(spans, width))
    return lines


def _hanging(start: list[Span], indent: int, text: str, style: str, width: int) -> list[Line]:
    rows = wrap(clean(text[:200]) + clean(text[200:400]), width - indent - 1, 4)
    lines = [exact([*start, (rows[0], style)], width)]
    return lines + [exact([(" " * indent, "text"), (row, style)], width) for row in rows[1:]]
