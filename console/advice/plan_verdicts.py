"""Sentences about a plan: what does not fit, where the work is, and what would help."""

from __future__ import annotations

from dataclasses import replace

from slotdeck.console.advice.capacity import context_for
from slotdeck.console.advice.plan import Plan, Verdict, slots_text
from slotdeck.console.advice.units import about, bytes_text

PREFILL_RATIO = 10
"""Prompt tokens for each answer token from which a turn is mostly prefill on common machines."""
MAX_RAM_SHARE = 0.9
"""Part of the free RAM above which the system may begin to swap."""
SMALL_MACHINE = 8 << 30
OUTGROWN = 4.0
"""Requests in flight above which another kind of server is worth it."""


def verdicts_of(plan: Plan) -> tuple[Verdict, ...]:
    """All verdicts, the worst first."""
    found = [*_fit(plan), *_current(plan), *_lengths(plan), *_work(plan), *_outgrown(plan)]
    rank = {"critical": 0, "warn": 1, "ok": 2}
    return tuple(sorted(found, key=lambda verdict: rank[verdict.level]))


def _fit(plan: Plan) -> list[Verdict]:
    capacity, question = plan.capacity, plan.question
    model, memory, kv = capacity.model, capacity.memory, capacity.kv_dtype
    where = "GPU" if memory.gpu else "machine"
    found = []
    if model.weight_bytes is None:
        text = "The size of the weights is unknown, so less fits than this plan says: give --weights-size."
        found.append(Verdict("weights_unknown", "warn", text))
    if capacity.cache_bytes <= 0:
        text = f"The weights alone need {bytes_text(model.weight_bytes or 0)} of {bytes_text(memory.usable)}"
        text = f"{text}: use a smaller model, or weights with fewer bits."
        return [Verdict("smaller_model", "critical", text)]
    wanted, context = plan.wanted_slots, capacity.context
    advised = plan.setting("slots") or 0
    if advised >= wanted and plan.setting("context") == context:
        need, total = advised * context, capacity.cache_tokens
        text = f"{slots_text(advised)} x {context:,} use {need:,} of the {total:,} tokens that the cache holds"
        found.append(Verdict("fits", "ok", f"{text}, so no request is preempted."))
        return found + _tight(plan)
    if capacity.conversations < 1:
        text = f"Not even one conversation of {context:,} tokens fits: the cache holds {capacity.cache_tokens:,}."
        found.append(Verdict("context_too_large", "critical", text))
    else:
        text = (
            f"{slots_text(wanted)} x {context:,} need {wanted * context:,} tokens, but the cache holds "
            f"{capacity.cache_tokens:,}: with that many slots the newest requests would be preempted."
        )
        found.append(Verdict("overcommit", "warn", text))
    eight_bit = capacity.with_kv_dtype("int8")
    if kv != "int8":
        text = (
            f"An 8-bit cache would hold {about(eight_bit.conversations)} conversations instead of "
            f"{about(capacity.conversations)}. It costs a little quality, so measure the effect."
        )
        found.append(Verdict("int8_cache", "warn", text))
    if question.prompt is not None and question.answer is not None:
        need = context_for(question.prompt, question.answer)
        if need < context:
            shorter = replace(capacity, context=need)
            text = f"A context of {need:,}, enough for prompt and answer, fits {about(shorter.conversations)} times."
            found.append(Verdict("shorter_context", "warn", text))
    best = eight_bit.conversations if kv != "int8" else capacity.conversations
    if best < wanted:
        text = (
            f"Even an 8-bit cache cannot hold {wanted} conversations on this {where}: use a smaller model, which "
            "leaves more memory for the cache, or let some requests wait."
        )
        found.append(Verdict("smaller_model", "warn", text))
    return found + _tight(plan)


def _current(plan: Plan) -> list[Verdict]:
    """A warning if the current settings can cause preemption."""
    over = plan.question.now.overcommitted
    text = f"With the current settings {over}, so requests may be preempted."
    return [] if over is None else [Verdict("now_overcommits", "warn", text)]


def _tight(plan: Plan) -> list[Verdict]:
    memory, model = plan.question.memory, plan.question.model
    tokens = plan.setting("kv_tokens")
    if memory.gpu or tokens is None:
        return []
    taken = (model.weight_bytes or 0) + tokens * model.token_bytes(plan.question.kv_dtype)
    if taken <= MAX_RAM_SHARE * memory.total:
        return []
    text = (
        f"Weights and cache leave only {bytes_text(memory.total - taken)} of the free RAM. If other programs need "
        "more, the system swaps, and no setting helps against that."
    )
    return [Verdict("os_swap", "warn", text)]


def _lengths(plan: Plan) -> list[Verdict]:
    question, context = plan.question, plan.capacity.context
    found = []
    trained = question.model.trained_context
    if trained is not None and context > trained:
        text = f"A context of {context:,} exceeds the {trained:,} tokens that the model was trained for."
        found.append(Verdict("trained_context", "critical", text))
    both = (question.prompt or 0) + (question.answer or 0)
    if both > context:
        text = (
            f"Prompt and answer take {both:,} tokens, but the context is {context:,}: longer prompts are refused and "
            "longer answers end early."
        )
        found.append(Verdict("too_long", "critical", text))
    return found


def _work(plan: Plan) -> list[Verdict]:
    """Whether a turn is mostly prefill or mostly decode, and what makes it shorter."""
    question, load = plan.question, plan.load
    prompt, answer, speed = question.prompt, question.answer, question.speed
    faster = "a faster GPU" if question.memory.gpu else "a GPU or more cores"
    text = (
        "More cores only speed up reading prompts. Writing is limited by memory bandwidth; a smaller model or weights "
        "with fewer bits make it faster."
    )
    generic = Verdict("phases", "ok", text)
    if prompt is None or answer is None:
        return [generic]
    turn = f"A {prompt:,}-token prompt with a {answer:,}-token answer is mostly"
    if speed is None:
        if prompt >= PREFILL_RATIO * answer:
            text = f"{turn} prefill: {faster}, shorter prompts or cached prefixes make it faster."
            return [Verdict("prefill_work", "ok", text)]
        return [generic]
    reading, writing = prompt / speed.prefill, answer / speed.decode
    split = f"{reading:.2g} s of reading, {writing:.2g} s of writing"
    if reading >= writing:
        text = f"{turn} prefill ({split}): {faster}, shorter prompts or cached prefixes make it faster."
        found = [Verdict("prefill_work", "ok", text)]
    else:
        text = (
            f"{turn} decode ({split}): more cores only speed up the reading; a smaller model or weights with fewer "
            "bits speed up the writing."
        )
        found = [Verdict("decode_work", "ok", text)]
    if load.generate_seconds < 0.9 * (reading + writing):
        text = (
            f"{load.generate_seconds:.3g} s of work for a turn is less than the {reading + writing:.2g} s that this "
            "machine needs when it serves nobody else."
        )
        found.append(Verdict("too_quick", "warn", text))
    between = max(load.turn_seconds, load.generate_seconds)
    busy = load.users * reading / between
    if busy > 1:
        text = (
            f"Reading the prompts alone takes {busy:.2g} times as long as there is time for. No setting helps: send "
            "fewer or shorter prompts, or use a faster machine."
        )
        found.append(Verdict("saturated", "critical", text))
    return found


def _outgrown(plan: Plan) -> list[Verdict]:
    flight, memory = plan.load.in_flight, plan.question.memory
    if flight <= OUTGROWN:
        return []
    requests = f"{flight:.3g} requests in flight"
    if memory.gpu:
        text = f"{requests} on a GPU: consider vLLM. `slotdeck export vllm` writes its settings."
        return [Verdict("vllm", "warn", text)]
    if memory.total <= SMALL_MACHINE:
        text = (
            f"{requests} on a small machine without a GPU: a smaller model, a shorter context or an 8-bit cache help; "
            "vLLM does not."
        )
        return [Verdict("small_box", "warn", text)]
    text = f"{requests}: above about {OUTGROWN:g}, a machine with a GPU and vLLM is the next step."
    return [Verdict("vllm", "warn", text)]
