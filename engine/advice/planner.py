"""How many people fit, what to set and why, and what would help: rules on top of the arithmetic. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import ceil
from typing import Literal

from engine.advice.capacity import (
    EVERY_CONTEXT,
    Capacity,
    CapacityError,
    Load,
    Memory,
    ModelFacts,
    Speed,
    about,
    byte_words,
    context_for,
)
from engine.advice.finding import PATIENCE
from engine.settings import BLOCK_SIZE, SETTINGS

Level = Literal["ok", "warn", "critical"]

USERS = 5
TURN_SECONDS = 90.0
"""Between the turns of a person who reads, when nobody says otherwise."""
GENERATE_SECONDS = 12.0
"""Of one turn, when nobody says and nothing was measured."""
CONTEXT = 2048
SPARE_SLOTS = 1.25
"""Slots for each request in flight: people do not come evenly."""
FEWEST_SLOTS = 2
"""For more than one person: a second stream in a step is almost free, and nobody waits for another's long answer."""
COMFORTABLE_SLOTS = 4
"""Advised where they fit, although fewer would do: people come at once now and then."""
SMOOTH = 0.1
"""Seconds that a piece of somebody's prompt may add to a step of those who watch text stream."""
BUDGETS = (16, 2048)
BUDGET_CPU, BUDGET_GPU = 64, 512
"""Without a measured speed."""
PREFILL_WORK = 10
"""Prompt tokens for each token of the answer from which a turn is mostly reading, on machines as they are."""
RAM_TIGHT = 0.9
"""Part of the free RAM from which the system may begin to swap."""
SMALL_BOX = 8 << 30
OUTGROWN = 4.0
"""Requests in flight from which a server of another kind pays."""


@dataclass(frozen=True)
class Now:
    """The settings of the engine that is planned for: what nothing speaks against stays as it is."""

    slots: int | None = None
    context: int | None = None
    budget: int | None = None
    kv_tokens: int | None = None

    @property
    def overcommitted(self) -> str | None:
        """How the slots promise more than the pool holds, in words; ``None`` if they do not."""
        if self.slots is None or self.context is None or self.kv_tokens is None:
            return None
        need = self.slots * self.context
        if need <= self.kv_tokens:
            return None
        return f"{_slots(self.slots)} x {self.context:,} = {need:,} tokens, the pool holds {self.kv_tokens:,}"


@dataclass(frozen=True)
class Question:
    """All that is asked of the planner; ``None`` is not known."""

    model: ModelFacts
    memory: Memory
    kv_dtype: str
    users: int = USERS
    turn_seconds: float = TURN_SECONDS
    generate_seconds: float | None = None
    prompt: int | None = None
    """Tokens, everything that is sent: system prompt, documents, earlier turns."""
    answer: int | None = None
    context: int | None = None
    speed: Speed | None = None
    now: Now = Now()


@dataclass(frozen=True)
class Advised:
    """One setting, its value, and why in one sentence."""

    name: str
    value: int
    reason: str


@dataclass(frozen=True)
class Verdict:
    """One thing to know, in words. ``key`` names the rule."""

    key: str
    level: Level
    text: str


@dataclass(frozen=True)
class Plan:
    """The planner's answer."""

    question: Question
    capacity: Capacity
    load: Load
    wanted_slots: int
    """What the people would need, whatever the memory holds."""
    settings: tuple[Advised, ...]
    """Empty when not even the weights fit."""
    verdicts: tuple[Verdict, ...]
    assumed: tuple[str, ...] = field(default=())
    """What was neither given nor measured."""

    def setting(self, name: str) -> int | None:
        """The value advised for a setting; ``None`` if there is none."""
        return next((one.value for one in self.settings if one.name == name), None)


def make_plan(question: Question) -> Plan:
    """Answer the question. Raises CapacityError for numbers that make no sense."""
    _check(question)
    seconds, assumed = _generate_seconds(question)
    load = Load(question.users, seconds, question.turn_seconds)
    context, reason = _context(question)
    capacity = Capacity(question.model, question.memory, question.kv_dtype, context)
    enough = max(FEWEST_SLOTS, ceil(load.in_flight * SPARE_SLOTS - 1e-9))
    wanted = min(question.users, enough, int(SETTINGS["slots"].maximum or enough))
    plan = Plan(question, capacity, load, wanted, (), (), assumed)
    plan = replace(plan, settings=_settings(plan, reason))
    return replace(plan, verdicts=tuple(_verdicts(plan)))


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
        missing += " (`slotdeck bench --card`)"
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
        return f"as it is: {flight} on average, and they fit"
    if load.users == 1:
        return "there is one"
    if load.in_flight >= load.users:
        return f"nobody pauses: all {load.users} are in flight"
    if slots > ceil(load.in_flight * SPARE_SLOTS):
        return f"{flight} on average, and a further stream is almost free"
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


def _slots(number: int) -> str:
    return f"{number} {'slot' if number == 1 else 'slots'}"


# ------------------------------------------------------------------ verdicts


def _verdicts(plan: Plan) -> list[Verdict]:
    found = [*_fit(plan), *_now(plan), *_lengths(plan), *_work(plan), *_outgrown(plan)]
    rank = {"critical": 0, "warn": 1, "ok": 2}
    return sorted(found, key=lambda verdict: rank[verdict.level])


def _fit(plan: Plan) -> list[Verdict]:
    capacity, question = plan.capacity, plan.question
    model, memory, kv = capacity.model, capacity.memory, capacity.kv_dtype
    where = "card" if memory.gpu else "machine"
    found = []
    if model.weight_bytes is None:
        found.append(Verdict("weights_unknown", "warn", "The weights' size is not known, so the cache is overstated: "
                             "give --weights-size."))  # fmt: skip
    if capacity.cache_bytes <= 0:
        text = f"The weights alone take {byte_words(model.weight_bytes or 0)} of {byte_words(memory.usable)}"
        return [Verdict("smaller_model", "critical", f"{text}: a smaller model, or weights of fewer bits.")]
    wanted, context = plan.wanted_slots, capacity.context
    advised = plan.setting("slots") or 0
    if advised >= wanted and plan.setting("context") == context:
        need, total = advised * context, capacity.cache_tokens
        found.append(Verdict("fits", "ok", f"{_slots(advised)} x {context:,} = {need:,} of {total:,} tokens of cache: "
                             "nobody is preempted."))  # fmt: skip
        return found + _tight(plan)
    if capacity.conversations < 1:
        text = f"Not one conversation of {context:,} tokens fits: the cache holds {capacity.cache_tokens:,}"
        found.append(Verdict("context_too_large", "critical", f"{text}."))
    else:
        found.append(
            Verdict(
                "overcommit",
                "warn",
                f"{_slots(wanted)} x {context:,} = {wanted * context:,} tokens, but the cache "
                f"holds {capacity.cache_tokens:,}: with that many the newest would be preempted.",
            )
        )
    eight = capacity.with_cache("int8")
    if kv != "int8":
        found.append(
            Verdict(
                "int8_cache",
                "warn",
                f"An 8-bit cache would hold {about(eight.conversations)} conversations instead "
                f"of {about(capacity.conversations)}, and costs a little quality: measure it.",
            )
        )
    if question.prompt is not None and question.answer is not None:
        need = context_for(question.prompt, question.answer)
        if need < context:
            shorter = replace(capacity, context=need)
            found.append(
                Verdict(
                    "shorter_context",
                    "warn",
                    f"A context of {need:,}, which prompt and answer need, fits {about(shorter.conversations)} times.",
                )
            )
    best = eight.conversations if kv != "int8" else capacity.conversations
    if best < wanted:
        few = f"Even an 8-bit cache is short of {wanted} conversations on this {where}"
        text = f"{few}: a smaller model leaves more for the cache, or let the rest wait."
        found.append(Verdict("smaller_model", "warn", text))
    return found + _tight(plan)


def _now(plan: Plan) -> list[Verdict]:
    """What is set at present, if it can preempt."""
    over = plan.question.now.overcommitted
    return [] if over is None else [Verdict("now_overcommits", "warn", f"As it is set now, {over}: preemption is "
                                            "possible.")]  # fmt: skip


def _tight(plan: Plan) -> list[Verdict]:
    memory, model = plan.question.memory, plan.question.model
    tokens = plan.setting("kv_tokens")
    if memory.gpu or tokens is None:
        return []
    taken = (model.weight_bytes or 0) + tokens * model.token_bytes(plan.question.kv_dtype)
    if taken <= RAM_TIGHT * memory.total:
        return []
    left = byte_words(memory.total - taken)
    return [Verdict("os_swap", "warn", f"Weights and cache leave {left} of the free RAM: anything else that grows "
                    "makes the system swap, and no setting helps against that.")]  # fmt: skip


def _lengths(plan: Plan) -> list[Verdict]:
    question, context = plan.question, plan.capacity.context
    found = []
    trained = question.model.trained_context
    if trained is not None and context > trained:
        found.append(Verdict("trained_context", "critical", f"A context of {context:,} is more than the {trained:,} "
                             "tokens that the model was trained for."))  # fmt: skip
    both = (question.prompt or 0) + (question.answer or 0)
    if both > context:
        found.append(Verdict("too_long", "critical", f"Prompt and answer take {both:,} tokens, the context is "
                             f"{context:,}: longer prompts are refused, longer answers end early."))  # fmt: skip
    return found


def _work(plan: Plan) -> list[Verdict]:
    """Which phase the work is in, and what shortens it."""
    question, load = plan.question, plan.load
    prompt, answer, speed = question.prompt, question.answer, question.speed
    cores = "a GPU or more cores" if not question.memory.gpu else "a faster card"
    generic = Verdict("phases", "ok", "More cores shorten the reading of prompts only: writing is bound by memory "
                      "bandwidth, there a smaller model or fewer bits help.")  # fmt: skip
    if prompt is None or answer is None:
        return [generic]
    turn = f"A {prompt:,}-token prompt with a {answer:,}-token answer is"
    if speed is None:
        if prompt >= PREFILL_WORK * answer:
            return [Verdict("prefill_work", "ok", f"{turn} prefill work: {cores}, shorter prompts or cached prefixes "
                            "shorten it.")]  # fmt: skip
        return [generic]
    reading, writing = prompt / speed.prefill, answer / speed.decode
    quick = load.generate_seconds < 0.9 * (reading + writing)
    split = f"{reading:.2g} s of reading, {writing:.2g} s of writing"
    if reading >= writing:
        found = [Verdict("prefill_work", "ok", f"{turn} prefill work ({split}): {cores}, shorter prompts or cached "
                         "prefixes shorten it.")]  # fmt: skip
    else:
        found = [Verdict("decode_work", "ok", f"{turn} decode work ({split}): more cores shorten the reading only, a "
                         "smaller model or fewer bits the writing.")]  # fmt: skip
    if quick:
        found.append(Verdict("too_quick", "warn", f"{load.generate_seconds:.3g} s of work for a turn is less than the "
                             f"{reading + writing:.2g} s that this machine needs with nobody else there."))  # fmt: skip
    between = max(load.turn_seconds, load.generate_seconds)
    busy = load.users * reading / between
    if busy > 1:
        found.append(Verdict("saturated", "critical", f"Reading the prompts alone keeps the machine busy {busy:.2g} "
                             "times over: no setting helps, only fewer or shorter prompts or a faster "
                             "machine."))  # fmt: skip
    return found


def _outgrown(plan: Plan) -> list[Verdict]:
    flight, memory = plan.load.in_flight, plan.question.memory
    if flight <= OUTGROWN:
        return []
    if memory.gpu:
        return [Verdict("vllm", "warn", f"{flight:.3g} in flight on a GPU: time for vLLM; `slotdeck export vllm` "
                        "writes its settings.")]  # fmt: skip
    if memory.total <= SMALL_BOX:
        return [Verdict("small_box", "warn", f"{flight:.3g} in flight on a small machine without a GPU: a smaller "
                        "model, a shorter context or an 8-bit cache help, vLLM does not.")]  # fmt: skip
    return [Verdict("vllm", "warn", f"{flight:.3g} in flight: from about {OUTGROWN:g} on, a machine with a GPU and "
                    "vLLM is the next step.")]  # fmt: skip
