"""A plan as text in 80 columns, and as JSON."""

from __future__ import annotations

import textwrap
from dataclasses import asdict
from typing import Any

from slotdeck.console.advice.plan import Plan
from slotdeck.console.advice.units import about, bytes_text

COLUMNS = 80
LABEL = 18


def plan_text(plan: Plan) -> list[str]:
    """Lines of at most 80 characters: what fits, what to set and why, and the verdicts."""
    question, capacity, load = plan.question, plan.capacity, plan.load
    model, memory, kv = question.model, question.memory, question.kv_dtype
    scales = model.scale_bytes(kv)
    weights = "unknown" if model.weight_bytes is None else bytes_text(model.weight_bytes)
    share = f"{bytes_text(memory.total)} x {memory.utilisation:g} = " if memory.gpu else ""
    rows = [
        ("weights", f"{weights}{f' as {model.weights}' if model.weights else ''}"),
        ("memory", f"{share}{bytes_text(memory.usable)} {'of the GPU' if memory.gpu else 'of RAM'}"),
        ("one token", f"{model.kv_bytes(kv):,} bytes as {kv}" + (f" + {scales:,} of scales" if scales else "")),
        ("one conversation", f"{capacity.context:,} tokens = {bytes_text(capacity.conversation_bytes)}"),
        ("cache", f"{bytes_text(capacity.cache_bytes)} = {capacity.cache_tokens:,} tokens"),
        ("fits", f"{about(capacity.conversations)} conversations of {capacity.context:,} tokens"),
        *([] if question.speed is None else [
            ("one stream alone", f"reads {question.speed.prefill:,.3g} tokens/s, writes {question.speed.decode:,.3g}"),
        ]),
        ("in flight", f"{load.in_flight:.3g} of {load.users} users: {load.generate_seconds:.3g} s of work per turn, "
                      f"one turn every {max(load.turn_seconds, load.generate_seconds):.3g} s"),
    ]  # fmt: skip
    lines = [model.name]
    for label, text in rows:
        lines += _hanging(f"  {label:<{LABEL}}", text)
    for text in plan.assumed:
        lines += _hanging("  assumed: ", text)
    lines += ["", "set"] if plan.settings else []
    for one in plan.settings:
        lines += _hanging(f"  {one.name:<10}{one.value:>8}  ", one.reason)
    lines += ["", "know"]
    for verdict in plan.verdicts:
        lines += _hanging({"critical": "  ! ", "warn": "  - ", "ok": "    "}[verdict.level], verdict.text)
    for note in model.notes:
        lines += _hanging("    ", note)
    return lines


def _hanging(head: str, text: str) -> list[str]:
    return textwrap.wrap(
        text,
        COLUMNS,
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_on_hyphens=False,
        drop_whitespace=True,
    )


def plan_json(plan: Plan) -> dict[str, Any]:
    """Every number of the plan, unrounded."""
    question, capacity, load = plan.question, plan.capacity, plan.load
    kv = question.kv_dtype
    return {
        "model": asdict(question.model),
        "memory": {"total_bytes": question.memory.total, "gpu": question.memory.gpu,
                   "utilisation": question.memory.utilisation, "usable_bytes": question.memory.usable},
        "kv": {"dtype": kv, "bytes_per_token": question.model.kv_bytes(kv),
               "scale_bytes_per_token": question.model.scale_bytes(kv)},
        "capacity": {"context": capacity.context, "conversation_bytes": capacity.conversation_bytes,
                     "cache_bytes": capacity.cache_bytes, "cache_tokens": capacity.cache_tokens,
                     "conversations": capacity.conversations, "shown": about(capacity.conversations)},
        "load": {"users": load.users, "generate_seconds": load.generate_seconds, "turn_seconds": load.turn_seconds,
                 "prompt": question.prompt, "answer": question.answer, "in_flight": load.in_flight,
                 "slots_wanted": plan.wanted_slots},
        "speed": None if question.speed is None else asdict(question.speed),
        "settings": [asdict(one) for one in plan.settings],
        "verdicts": [asdict(verdict) for verdict in plan.verdicts],
        "assumed": list(plan.assumed),
    }  # fmt: skip
