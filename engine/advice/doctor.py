"""The doctor: from a window of frames to what is wrong, the evidence in numbers, and what to turn.

Each rule looks for one cause of slowness that an admin can do something about, and says nothing when it does not
hold. A rule that explains what another one saw silences it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Literal

from engine.advice.window import Window, occupied
from engine.settings import SETTINGS
from engine.telemetry.frame import Frame

Level = Literal["warn", "critical"]

NOTICED_WAIT = 1.0
"""Seconds in the queue that a person notices."""
SLOW_START = 2.0
"""Seconds to the first token that a person calls slow."""
SLOW_GAP = 0.2
"""Seconds between tokens from which text comes slower than it is read."""
PATIENCE = 30.0
"""Seconds after which people give up and ask again."""
FEW_REQUESTS, FEW_GAPS = 5, 50
"""Samples below which a percentile says nothing."""
SWAPPING = 100_000.0
"""Bytes per second of OS swap that are no accident."""
PRESSED = 10.0
"""Percent of the time in which tasks waited for memory (PSI)."""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong."""

    rule: str
    level: Level
    what: str
    """A heading."""
    evidence: tuple[str, ...]
    """The numbers it rests on, a line each."""
    knob: str | None
    """Name of the setting to turn; ``None`` if none helps."""
    turn: str
    """What to do, short: ``slots 4 → 6``."""
    why: str
    """One sentence in plain words."""


def diagnose(frames: Sequence[Frame]) -> list[Finding]:
    """All findings, the worst first; none when all is well, or when there is no frame."""
    if not frames:
        return []
    window = Window(frames)
    findings = {rule.__name__.strip("_"): finding for rule in RULES if (finding := rule(window)) is not None}
    for cause, explained in SILENCES.items():
        if cause in findings:
            for rule in explained:
                findings.pop(rule, None)
    return sorted(findings.values(), key=lambda finding: finding.level != "critical")


def _fault(w: Window) -> Finding | None:
    faults = sum(event.kind == "engine_fault" for frame in w.frames for event in frame.events)
    failed = w.rose("failed")
    if w.last.health != "fault" and not faults:
        return None
    reason = w.last.health_reason if w.last.health == "fault" else None
    evidence = [f"{faults} steps failed, {failed} requests with them"] if faults or failed else []
    return Finding(
        "fault", "critical", "The engine had faults", (*evidence, *([reason] if reason else [])), None,
        "read engine.log, `slotdeck info` says where", "What it computed in a failed step was lost; see its log.",
    )  # fmt: skip


def _os_swap(w: Window) -> Finding | None:
    def moved(frame: Frame) -> float | None:
        host = frame.host
        return None if host.os_swap_in is None else host.os_swap_in + (host.os_swap_out or 0.0)

    swapping = sum((moved(frame) or 0.0) > SWAPPING for frame in w.frames)
    pressure = w.highest(lambda frame: frame.host.memory_pressure) or 0.0
    pressed = w.share(lambda frame: (frame.host.memory_pressure or 0.0) > PRESSED)
    if swapping < max(3, len(w.frames) // 20) and not (pressed > 0.2 and len(w.frames) >= 3):
        return None
    host = w.last.host
    evidence = [
        f"OS swap moved up to {_bytes(w.highest(moved))}/s, in {swapping} of {len(w.frames)} frames",
        f"tasks waited for memory in up to {pressure:.0f}% of the time",
    ]
    if host.memory_used is not None and host.memory_total is not None:
        evidence.append(f"memory {_bytes(host.memory_used)} of {_bytes(host.memory_total)} in use")
    if w.latency.itl_p95 is not None:
        evidence.append(f"ITL p95 {_time(w.latency.itl_p95)}")
    return Finding(
        "os_swap", "critical", "The machine swaps", tuple(evidence), "kv_tokens",
        "a smaller model, a smaller pool (--kv-tokens) or fewer slots",
        "Weights or KV lie on the disk when a step needs them, so every token waits for it; no other setting helps.",
    )  # fmt: skip


def _preemption(w: Window) -> Finding | None:
    count = w.rose("preemptions")
    if not count:
        return None
    again, computed = w.rose("recomputed_tokens"), w.rose("prompt_tokens")
    part = again / computed if computed else 0.0
    hit = [seen.slot for seen in w.requests if seen.slot.preemptions]
    stalled = max((slot.stalled or 0.0 for slot in hit), default=None)
    evidence = [
        f"{count} preemptions, {again} tokens computed a second time"
        + (f": {part:.0%} of all prefill" if part >= 0.01 else "")
    ]
    if hit and stalled is not None:
        evidence.append(f"{len(hit)} of {len(w.requests)} requests seen were hit, one stood still for {_time(stalled)}")
    if w.fullest is not None:
        evidence.append(f"the KV pool was up to {w.fullest:.0%} live")
    limits, total = w.last.limits, w.last.pool.total
    block = w.last.pool.block_size or 1
    sizes = sorted(seen.slot.blocks * block for seen in w.requests if seen.slot.blocks)
    # Three in four requests were no larger than this.
    size = sizes[len(sizes) * 3 // 4] if sizes else None
    fitting = int(total * 0.95 // size) if total and size else None
    larger = f"kv_tokens {total} → {max(ceil((total or 0) * 1.25), (limits.slots or 1) * (size or 0))}"
    if limits.slots and fitting and 1 <= fitting < limits.slots:
        knob, turn = "slots", f"slots {limits.slots} → {fitting}, or a larger pool: {larger}"
    else:
        knob, turn = "kv_tokens", f"a larger pool: {larger}"
    return Finding(
        "preemption", "critical" if part >= 0.2 or (stalled or 0.0) > 10 else "warn",
        "Running requests lose their KV", tuple(evidence), knob, turn,
        "The pool is too small for what runs at once, so the newest are stopped and computed again: one user waits "
        "far longer while the averages look fine.",
    )  # fmt: skip


def _queue(w: Window) -> Finding | None:
    late, limits = w.latency, w.last.limits
    wait, ttft = late.wait_p95, late.ttft_p95
    if wait is None or ttft is None or late.wait_count < FEW_REQUESTS or wait < NOTICED_WAIT or wait < ttft / 2:
        return None
    waiting = [frame for frame in w.frames if frame.waiting_count]
    most = w.highest(lambda frame: frame.waiting_count) or 0
    slots = limits.slots or 0
    full = sum(occupied(frame) >= (frame.limits.slots or 1) for frame in waiting)
    evidence = [
        f"95% waited up to {_time(wait)} for a slot, of {_time(ttft)} to the first token (n={late.wait_count})",
        f"all {slots} slots busy in {w.share(lambda f: occupied(f) >= (f.limits.slots or 1)):.0%} of the time, "
        f"up to {most:.0f} waited",
    ]
    if w.fullest is not None:
        evidence.append(f"the KV pool was at most {w.fullest:.0%} live")
    total, context = w.last.pool.total, limits.context
    if waiting and full < len(waiting) / 2:
        return Finding(
            "queue", "warn", "Requests wait for room in the KV pool", tuple(evidence), "kv_tokens",
            f"a larger pool (kv_tokens, now {total}) or a smaller context",
            "Slots are free, but the pool has no room for the next prompt: more slots would change nothing.",
        )  # fmt: skip
    mean = sum(frame.waiting_count or 0 for frame in waiting) / len(waiting) if waiting else 1.0
    wanted = slots + max(1, min(round(mean), slots))
    room = max(total // context if total and context else wanted, int(slots * 0.85 / w.fullest) if w.fullest else 0)
    if w.rose("preemptions"):
        knob, turn = "kv_tokens", f"a larger pool (kv_tokens, now {total}): more slots would only preempt more"
    elif room > slots:
        better = min(wanted, room, int(SETTINGS["slots"].maximum or wanted))
        knob, turn = "slots", f"slots {slots} → {better}"
    else:
        knob, turn = "kv_tokens", f"a larger pool (kv_tokens, now {total}), then slots {slots} → {wanted}"
    itl = f", now {_time(late.itl_p50)}" if late.itl_p50 is not None else ""
    return Finding(
        "queue", "critical" if wait > PATIENCE else "warn", "Requests wait for a slot", tuple(evidence), knob, turn,
        f"TTFT is mostly queue: more slots let them start at once, and each adds a little to everyone's ITL{itl}.",
    )  # fmt: skip


def _prefill(w: Window) -> Finding | None:
    late, budget = w.latency, w.last.limits.budget
    ttft, wait = late.ttft_p95, late.wait_p95 or 0.0
    if ttft is None or late.ttft_count < FEW_REQUESTS or ttft < SLOW_START or ttft - wait < 0.6 * ttft:
        return None
    prompt, fill = w.typical(lambda s: s.prompt_tokens), w.typical(lambda s: s.prefill)
    evidence = [
        f"TTFT p95 {_time(ttft)}, of it at most {_time(wait)} in the queue (n={late.ttft_count})",
    ]
    if prompt is not None and fill is not None:
        evidence.append(f"typical: {prompt:.0f} prompt tokens read in {_time(fill)}")
    if w.last.prompt_per_second is not None:
        evidence.append(f"prefill up to {w.highest(lambda f: f.prompt_per_second) or 0:.0f} tok/s, budget {budget}")
    room = late.itl_p95 is None or late.itl_p95 < SLOW_GAP
    if room and budget is not None:
        knob: str | None = "budget"
        turn = f"budget {budget} → {min(budget * 2, int(SETTINGS['budget'].maximum or budget))}"
        more = "a larger budget reads more of it in each step, and there is room for that in the ITL"
    else:
        knob, turn = None, "shorter prompts: less history, fewer documents"
        more = "a larger budget would make those who watch text stream wait, so the prompts must get shorter"
    return Finding(
        "prefill", "warn", "Reading the prompts takes long", tuple(evidence), knob, turn,
        f"TTFT is mostly prefill, not queue: {more}.",
    )  # fmt: skip


def _decode(w: Window) -> Finding | None:
    late, slots = w.latency, w.last.limits.slots
    if late.itl_p50 is None or late.itl_count < FEW_GAPS or late.itl_p50 < SLOW_GAP:
        return None
    streams = w.mean(lambda f: sum(slot.state == "decode" for slot in f.slots) if f.slots else f.running) or 0.0
    evidence = [f"ITL p50 {_time(late.itl_p50)}, p95 {_time(late.itl_p95)} (n={late.itl_count})"]
    speed = w.highest(lambda frame: frame.generated_per_second)
    if speed is not None:
        evidence.append(f"{streams:.1f} streams at a time on average, up to {speed:.0f} tok/s together")
    target = max(1, int(streams * SLOW_GAP / late.itl_p50))
    if slots and slots > 1 and streams >= 2 and target < slots:
        knob: str | None = "slots"
        turn = f"slots {slots} → {target}"
    else:
        knob, turn = None, "a smaller model, or weights of fewer bits"
    return Finding(
        "decode", "warn", "Text comes slower than people read", tuple(evidence), knob, turn,
        "Each token of each stream needs its share of the machine: fewer streams at once, a smaller model or a faster "
        "machine make the steps shorter.",
    )  # fmt: skip


def _budget(w: Window) -> Finding | None:
    late, budget = w.latency, w.last.limits.budget
    if late.itl_p50 is None or late.itl_p95 is None or late.itl_count < FEW_GAPS or budget is None:
        return None
    filling = w.share(lambda f: any(slot.state == "prefill" for slot in f.slots))
    if late.itl_p95 < max(4 * late.itl_p50, SLOW_GAP * 1.5) or filling < 0.05 or budget < 32:
        return None
    return Finding(
        "budget", "warn", "Others' prompts make streams stutter",
        (f"ITL p50 {_time(late.itl_p50)}, but p95 {_time(late.itl_p95)} (n={late.itl_count})",
         f"a prompt was being read in {filling:.0%} of the time, up to {budget} tokens a step"),
        "budget", f"budget {budget} → {budget // 2}",
        "A step that reads a piece of a prompt is longer for everyone in it; smaller pieces make smoother text and a "
        "later first token.",
    )  # fmt: skip


def _deep_queue(w: Window) -> Finding | None:
    depth, slots = w.last.limits.queue, w.last.limits.slots or 1
    paces = [one.estimate / place for f in w.frames for place, one in enumerate(f.waiting, 1) if one.estimate]
    if not paces or not depth:
        return None
    pace = sorted(paces)[len(paces) // 2]
    longest = w.highest(lambda f: max((one.waited or 0.0 for one in f.waiting), default=None)) or 0.0
    left = w.rose("gave_up_waiting")
    if depth * pace <= 2 * PATIENCE or (not left and longest < PATIENCE):
        return None
    better = max(slots if slots * pace <= PATIENCE else 1, int(PATIENCE / pace))
    if better >= depth:
        return None
    return Finding(
        "deep_queue", "warn", "The queue promises more than it can keep",
        (f"a place moves on every {_time(pace)}, so the last of {depth} would wait about {_time(depth * pace)}",
         f"{left} gave up waiting, the longest wait was {_time(longest)}"),
        "queue", f"queue {depth} → {better}",
        "Those at its end leave before they are served; a shorter queue refuses them at once with 503, and their "
        "client can say so.",
    )  # fmt: skip


def _context(w: Window) -> Finding | None:
    refused = w.rose("too_long")
    if not refused:
        return None
    context, trained, total = w.last.limits.context, w.last.engine.trained_context, w.last.pool.total
    users = sorted({e.user for f in w.frames for e in f.events if e.kind == "too_long" and e.user})
    evidence = [f"{refused} {'prompts' if refused > 1 else 'prompt'} refused: no room in the context of {context}"]
    if users:
        evidence.append(f"from {', '.join(users[:4])}" + (" and others" if len(users) > 4 else ""))
    most = min(value for value in (trained, total, (context or 0) * 2) if value)
    if context and most > context:
        knob: str | None = "context"
        turn = f"context {context} → {most}"
    elif context and trained and trained > context:
        knob, turn = "kv_tokens", f"a larger pool (kv_tokens, now {total}), then a larger context"
    else:
        knob, turn = None, "shorter conversations: the model was trained for no more"
    return Finding(
        "context", "warn", "Prompts do not fit the context", tuple(evidence), knob, turn,
        "A prompt is never cut here, so that no answer forgets its beginning: what does not fit is refused.",
    )  # fmt: skip


def _cold_start(w: Window) -> Finding | None:
    times = [seen.slot.ttft for seen in w.requests if not seen.after_quiet and seen.slot.ttft is not None]
    usual = sorted(times)[len(times) // 2] if len(times) >= 3 else None
    cold = [
        seen.slot.ttft
        for seen in w.requests
        if seen.after_quiet and usual and seen.slot.ttft is not None and seen.slot.ttft > max(3 * usual, SLOW_START)
    ]
    evidence = []
    if w.boots > 1:
        load = w.last.engine.load_seconds
        evidence.append(
            f"restarted {'once' if w.boots == 2 else f'{w.boots - 1} times'} within {_time(w.whole_seconds)}"
            + (f", loading took {_time(load)} each time" if load is not None else "")
        )
    if cold:
        evidence.append(
            f"{len(cold)} first requests after a quiet minute took up to {_time(max(cold))}, others {_time(usual)}"
        )
    if not evidence:
        return None
    return Finding(
        "cold_start", "warn", "Some requests pay for a cold start", tuple(evidence), None,
        "keep it running: `slotdeck serve` as a service; for another server, its keep-alive time",
        "After a restart or an unload the model is read again before the first token.",
    )  # fmt: skip


RULES: tuple[Callable[[Window], Finding | None], ...] = (
    _fault, _os_swap, _preemption, _queue, _prefill, _decode, _budget, _deep_queue, _context, _cold_start,
)  # fmt: skip

SILENCES = {"os_swap": ("decode", "budget", "prefill"), "preemption": ("budget",)}
"""A cause, and what it makes the other rules see."""


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _bytes(count: float | None) -> str:
    if count is None:
        return "–"
    for size, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} B"
