"""The planner: how many users fit, what to set, and why."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from slotdeck.console.advice.capacity import CONTEXT_STEP, Capacity, CapacityError, Load, context_for
from slotdeck.console.advice.finding import GIVE_UP_SECONDS
from slotdeck.console.advice.plan import Plan, Question, SettingAdvice
from slotdeck.console.advice.plan_verdicts import verdicts_of
from slotdeck.console.advice.units import bytes_text
from slotdeck.engine.settings import BLOCK_SIZE, SETTINGS

GENERATE_SECONDS = 12.0
"""Seconds of work for one turn if they are neither given nor computed from a measured speed."""
CONTEXT = 2048
SPARE_SLOTS = 1.25
"""Slots for each request in flight, because requests do not arrive evenly."""
MIN_SLOTS = 2
"""For more than one user. A second stream in a step is almost free, and nobody waits for another user's long answer."""
COMFORTABLE_SLOTS = 4
"""Recommended if they fit although fewer would be enough, because several users may ask at once."""
SMOOTH_SECONDS = 0.1
"""Seconds that reading a piece of a prompt may add to a step with streams in it."""
MIN_BUDGET, MAX_BUDGET = 16, 2048
BUDGET_CPU, BUDGET_GPU = 64, 512
"""Defaults without a measured speed."""


def make_plan(question: Question) -> Plan:
    """Answer the question. Raises CapacityError for numbers that are out of range."""
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
    """Seconds of work for one turn, and the assumptions behind them."""
    if question.generate_seconds is not None:
        return question.generate_seconds, ()
    if question.speed is not None and question.prompt is not None and question.answer is not None:
        return question.speed.turn_seconds(question.prompt, question.answer), ()
    missing = "prompt and answer lengths are unknown"
    if question.speed is None:
        missing = "no speed was measured (`slotdeck bench --calibrate`)"
    return GENERATE_SECONDS, (f"{GENERATE_SECONDS:g} s of work for each turn, because {missing}",)


def _context(question: Question) -> tuple[int, str]:
    """Tokens of one conversation, and why."""
    trained = question.model.trained_context
    if question.context is not None:
        return question.context, "as you asked"
    if question.prompt is not None and question.answer is not None:
        need = context_for(question.prompt, question.answer)
        reason = f"fits a prompt of {question.prompt:,} and an answer of {question.answer:,}"
        if trained is not None and need > trained >= question.prompt + question.answer:
            need = trained
        return need, reason
    if question.now.context is not None:
        return question.now.context, "unchanged: the lengths are unknown"
    if trained is not None and trained < CONTEXT:
        return trained, "the model was not trained for more"
    return CONTEXT, "the default: the lengths are unknown"


def _settings(plan: Plan, context_reason: str) -> tuple[SettingAdvice, ...]:
    capacity = plan.capacity
    context = capacity.context
    if capacity.cache_tokens < context:
        context = capacity.cache_tokens // CONTEXT_STEP * CONTEXT_STEP
        context_reason = f"{capacity.context:,} do not fit: the cache holds {capacity.cache_tokens:,}"
        if context == 0:
            return ()
    fit = capacity.cache_tokens // context
    slots = min(_comfortable_slots(plan), fit)
    return (
        SettingAdvice("slots", slots, _slots_reason(plan, slots, fit)),
        SettingAdvice("context", context, context_reason),
        _queue(plan, slots),
        _budget(plan.question),
        _pool(plan, slots, context),
    )


def _comfortable_slots(plan: Plan) -> int:
    """The slots that are needed, and a few more if that costs nothing. The current number is kept if it is close."""
    wanted, now = plan.wanted_slots, plan.question.now.slots
    if now is not None and wanted <= now <= max(COMFORTABLE_SLOTS, 2 * wanted):
        return now
    return max(wanted, min(plan.load.users, COMFORTABLE_SLOTS))


def _slots_reason(plan: Plan, slots: int, fit: int) -> str:
    load, wanted = plan.load, plan.wanted_slots
    in_flight = f"{load.in_flight:.3g} requests in flight"
    if slots < wanted:
        return f"{in_flight}, but the cache holds only {fit} such contexts"
    if slots == plan.question.now.slots:
        return f"unchanged: {in_flight} fit"
    if load.users == 1:
        return "there is one user"
    if load.in_flight >= load.users:
        return f"users never pause: all {load.users} requests are in flight"
    if slots > ceil(load.in_flight * SPARE_SLOTS):
        return f"{in_flight}; further streams are almost free"
    return f"{in_flight} on average, plus a quarter"


def _queue(plan: Plan, slots: int) -> SettingAdvice:
    pace = plan.load.generate_seconds / slots
    others = max(1, plan.load.users - slots)
    depth = max(1, min(int(GIVE_UP_SECONDS / pace), others, int(SETTINGS["queue"].maximum or others)))
    wait = f"a slot frees up every {pace:.2g} s at best, so the last request waits {depth * pace:.2g} s"
    if depth == others:
        return SettingAdvice("queue", depth, f"{wait}; no more users can be waiting")
    return SettingAdvice("queue", depth, f"{wait}; a longer queue would only make people wait longer")


def _budget(question: Question) -> SettingAdvice:
    if question.speed is None:
        if question.now.budget is not None:
            return SettingAdvice("budget", question.now.budget, "unchanged: prefill speed was not measured")
        device, value = ("GPU", BUDGET_GPU) if question.memory.gpu else ("CPU", BUDGET_CPU)
        return SettingAdvice("budget", value, f"the default on a {device}: prefill speed was not measured")
    value = MIN_BUDGET
    while value * 2 <= min(question.speed.prefill * SMOOTH_SECONDS, MAX_BUDGET):
        value *= 2
    cost = value / question.speed.prefill * 1000
    return SettingAdvice("budget", value, f"reading prompts adds about {cost:.2g} ms to a step with streams")


def _pool(plan: Plan, slots: int, context: int) -> SettingAdvice:
    capacity, maximum = plan.capacity, int(SETTINGS["kv_tokens"].maximum or 0)
    fits = min(capacity.cache_tokens, maximum)
    need = min(ceil(slots * context / BLOCK_SIZE) * BLOCK_SIZE, maximum)
    now = plan.question.now.kv_tokens
    if plan.question.memory.gpu:
        return SettingAdvice("kv_tokens", fits, "all that the weights leave; the surplus caches prefixes")
    if now is not None and need <= now <= fits:
        return SettingAdvice("kv_tokens", now, "unchanged; the surplus caches prefixes")
    size = bytes_text(need * capacity.model.token_bytes(capacity.kv_dtype))
    return SettingAdvice("kv_tokens", need, f"{slots} x {context:,} = {size}, so no request is preempted")
