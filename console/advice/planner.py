"""How many people fit, what to set and why: rules on top of the arithmetic. Pure."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from slotdeck.console.advice.capacity import (
    EVERY_CONTEXT,
    Capacity,
    CapacityError,
    Load,
    byte_words,
    context_for,
)
from slotdeck.console.advice.finding import PATIENCE
from slotdeck.console.advice.plan import Advised, Plan, Question
from slotdeck.console.advice.verdicts import verdicts_of
from slotdeck.engine.settings import BLOCK_SIZE, SETTINGS

GENERATE_SECONDS = 12.0
"""Of one turn, when nobody says and nothing was measured."""
CONTEXT = 2048
SPARE_SLOTS = 1.25
"""Slots for each request in flight: people do not come evenly."""
MIN_SLOTS = 2
"""For more than one person: a second stream in a step is almost free, and nobody waits for another's long answer."""
COMFORTABLE_SLOTS = 4
"""Advised where they fit, although fewer would do: people come at once now and then."""
SMOOTH = 0.1
"""Seconds that a piece of somebody's prompt may add to a step of those who watch text stream."""
BUDGETS = (16, 2048)
BUDGET_CPU, BUDGET_GPU = 64, 512
"""Without a measured speed."""


def make_plan(question: Question) -> Plan:
    """Answer the question. Raises CapacityError for numbers that make no sense."""
    _check(question)
    seconds, assumed = _generate_seconds(question)
    load = Load(question.users, seconds, question.turn_seconds)
    context, reason = _context(question)
    capacity = Capacity(question.model, question.memory, question.kv_dtype, context)
    enough = max(MIN_SLOTS, ceil(load.in_flight * SPARE_SLOTS - 1e-9))
    wanted = min(question.users, enough, int(SETTINGS["slots"].maximum or enough))
    plan = Plan(question, capacity, load, wanted, (), (), assumed)
    plan = replace(plan, settings=_settings(plan, reason))
    return replace(plan, verdicts=verdicts_of(plan))


def _check(question: Question) -> None:
    for name in ("prompt", "answer"):
        value = getattr(question, name)
        if value is not None and value < 1:
            raise CapacityError(f"{name} must be at least 1 token, not {value}")
    low, high = SETTINGS["context"].minimum or 1, SETTINGS["context"].maximum or 1
    if question.context is not None and not low <= question.context <= high:
        raise CapacityError(f"context must be between {low:.0f} and {high:.0f} tokens, not {question.context}")


def _generate_seconds(question: Question) -> tuple[float, tuple[str, ...]]:
    """Seconds of work for one turn, and what had to be assumed for it."""
    if question.generate_seconds is not None:
        return question.generate_seconds, ()
    if question.speed is not None and question.prompt is not None and question.answer is not None:
        return question.speed.turn(question.prompt, question.answer), ()
    missing = "the lengths of prompt and answer" if question.speed is not None else "a measured speed"
    if question.speed is None:
        missing += " (`slotdeck bench --calibrate`)"
    return GENERATE_SECONDS, (f"{GENERATE_SECONDS:g} s of work for each turn, for want of {missing}",)


def _context(question: Question) -> tuple[int, str]:
    trained = question.model.trained_context
    if question.context is not None:
        return question.context, "as asked for"
    if question.prompt is not None and question.answer is not None:
        need = context_for(question.prompt, question.answer)
        text = f"a prompt of {question.prompt:,} and an answer of {question.answer:,} need it"
        if trained is not None and need > trained >= question.prompt + question.answer:
            need = trained
        return need, text
    if question.now.context is not None:
        return question.now.context, "as it is: the lengths are not given"
    if trained is not None and trained < CONTEXT:
        return trained, "the model was trained for no more"
    return CONTEXT, "the default: the lengths are not given"


def _settings(plan: Plan, context_reason: str) -> tuple[Advised, ...]:
    capacity = plan.capacity
    context = capacity.context
    if capacity.cache_tokens < context:
        context = capacity.cache_tokens // EVERY_CONTEXT * EVERY_CONTEXT
        context_reason = f"{capacity.context:,} do not fit, the cache holds {capacity.cache_tokens:,}"
        if context == 0:
            return ()
    fit = capacity.cache_tokens // context
    slots = min(_comfortable(plan), fit)
    return (
        Advised("slots", slots, _slots_reason(plan, slots, fit)),
        Advised("context", context, context_reason),
        _queue(plan, slots),
        _budget(plan.question),
        _pool(plan, slots, context),
    )


def _comfortable(plan: Plan) -> int:
    """What is wanted, and some more where that costs nothing; those in force if they are about as many."""
    wanted, now = plan.wanted_slots, plan.question.now.slots
    if now is not None and wanted <= now <= max(COMFORTABLE_SLOTS, 2 * wanted):
        return now
    return max(wanted, min(plan.load.users, COMFORTABLE_SLOTS))


def _slots_reason(plan: Plan, slots: int, fit: int) -> str:
    load, wanted = plan.load, plan.wanted_slots
    flight = f"{load.in_flight:.3g} in flight"
    if slots < wanted:
        return f"{flight}, but the cache holds {fit} such contexts"
    if slots == plan.question.now.slots:
        return f"as it is: {flight}, and they fit"
    if load.users == 1:
        return "there is one"
    if load.in_flight >= load.users:
        return f"nobody pauses: all {load.users} are in flight"
    if slots > ceil(load.in_flight * SPARE_SLOTS):
        return f"{flight}, and a further stream is almost free"
    return f"{flight} on average, and a quarter more"


def _queue(plan: Plan, slots: int) -> Advised:
    pace = plan.load.generate_seconds / slots
    others = max(1, plan.load.users - slots)
    depth = max(1, min(int(PATIENCE / pace), others, int(SETTINGS["queue"].maximum or others)))
    wait = f"at best a place each {pace:.2g} s, {depth * pace:.2g} s for the last"
    if depth == others:
        return Advised("queue", depth, f"{wait}; no more can be left over")
    return Advised("queue", depth, f"{wait}, others get 503 at once")


def _budget(question: Question) -> Advised:
    low, high = BUDGETS
    if question.speed is None:
        if question.now.budget is not None:
            return Advised("budget", question.now.budget, "as it is: prefill speed was not measured")
        where, value = ("GPU", BUDGET_GPU) if question.memory.gpu else ("CPU", BUDGET_CPU)
        return Advised("budget", value, f"the default on a {where}: prefill speed was not measured")
    value = low
    while value * 2 <= min(question.speed.prefill * SMOOTH, high):
        value *= 2
    cost = value / question.speed.prefill * 1000
    return Advised("budget", value, f"adds about {cost:.2g} ms to a step of those who watch")


def _pool(plan: Plan, slots: int, context: int) -> Advised:
    capacity, most = plan.capacity, int(SETTINGS["kv_tokens"].maximum or 0)
    fits = min(capacity.cache_tokens, most)
    need = min(ceil(slots * context / BLOCK_SIZE) * BLOCK_SIZE, most)
    if plan.question.memory.gpu:
        return Advised("kv_tokens", fits, "what the weights leave; the rest keeps prefixes")
    if plan.question.now.kv_tokens is not None and need <= plan.question.now.kv_tokens <= fits:
        return Advised("kv_tokens", plan.question.now.kv_tokens, "as it is; what is left over keeps prefixes")
    size = byte_words(need * capacity.model.token_bytes(capacity.kv_dtype))
    return Advised("kv_tokens", need, f"{slots} x {context:,} = {size}: nobody is preempted")
