"""What there is to know about a plan, in words: what does not fit, where the work is, what would help. Pure."""

from __future__ import annotations

from dataclasses import replace

from slotdeck.console.advice.capacity import about, byte_words, context_for
from slotdeck.console.advice.plan import Plan, Verdict, slots_words

PREFILL_WORK = 10
"""Prompt tokens for each token of the answer from which a turn is mostly reading, on machines as they are."""
RAM_TIGHT = 0.9
"""Part of the free RAM from which the system may begin to swap."""
SMALL_BOX = 8 << 30
OUTGROWN = 4.0
"""Requests in flight from which a server of another kind pays."""


def verdicts_of(plan: Plan) -> tuple[Verdict, ...]:
    """All that there is to know, the worst first."""
    found = [*_fit(plan), *_now(plan), *_lengths(plan), *_work(plan), *_outgrown(plan)]
    rank = {"critical": 0, "warn": 1, "ok": 2}
    return tuple(sorted(found, key=lambda verdict: rank[verdict.level]))


def _fit(plan: Plan) -> list[Verdict]:
    capacity, question = plan.capacity, plan.question
    model, memory, kv = capacity.model, capacity.memory, capacity.kv_dtype
    where = "GPU" if memory.gpu else "machine"
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
        found.append(Verdict("fits", "ok", f"{slots_words(advised)} x {context:,} = {need:,} of {total:,} tokens of "
                             "cache: nobody is preempted."))  # fmt: skip
        return found + _tight(plan)
    if capacity.conversations < 1:
        text = f"Not one conversation of {context:,} tokens fits: the cache holds {capacity.cache_tokens:,}"
        found.append(Verdict("context_too_large", "critical", f"{text}."))
    else:
        found.append(
            Verdict(
                "overcommit",
                "warn",
                f"{slots_words(wanted)} x {context:,} = {wanted * context:,} tokens, but the cache "
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
    cores = "a GPU or more cores" if not question.memory.gpu else "a faster GPU"
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
