"""Rules about the pace of the work itself: reading prompts, writing text, and one disturbing the other."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from slotdeck.console.advice.finding import (
    FEW_GAPS,
    FEW_REQUESTS,
    SLOW_GAP,
    SLOW_START,
    Finding,
    Value,
    bounded,
    power_of_two,
    time_text,
)
from slotdeck.console.advice.window import Window, in_state, occupied
from slotdeck.engine.telemetry.frame import Frame

MIN_BUDGET = 16
"""Below it a prompt takes for ever, however smooth the streams are."""
STUTTER = 4.0
"""A gap so many times the usual one is a pause that is seen."""


def prefill(w: Window) -> Finding | None:
    """A late first token although nobody waits: long prompts, a small budget, no prefix cache."""
    late, limits = w.latency, w.last.limits
    ttft, wait = late.ttft_p95, late.wait_p95 or 0.0
    if ttft is None or late.ttft_count < FEW_REQUESTS or ttft < SLOW_START or ttft - wait < 0.6 * ttft:
        return None
    slow = [seen.slot for seen in w.requests if (seen.slot.prefill or 0.0) > ttft / 2]
    prompt = median(slot.prompt_tokens or 0 for slot in slow) if slow else None
    fill = median(slot.prefill or 0.0 for slot in slow) if slow else None
    evidence = [f"TTFT p95 {time_text(ttft)}, of it at most {time_text(wait)} in the queue (n={late.ttft_count})"]
    if prompt is not None and fill is not None:
        evidence.append(
            f"{len(slow)} of {len(w.requests)} requests took about {time_text(fill)} for {prompt:.0f} prompt tokens"
        )
    if w.last.prompt_per_second is not None:
        most = w.highest(lambda f: f.prompt_per_second) or 0
        evidence.append(f"prefill up to {most:.0f} tok/s, budget {limits.budget}")
    saved, computed = w.rose("cached_tokens"), w.rose("prompt_tokens")
    if saved + computed:
        off = ", which is off" if limits.prefix_cache is False else ""
        evidence.append(f"{saved / (saved + computed):.0%} of the prompt tokens came from the prefix cache{off}")
    changes, turn, more = _read_faster(w, prompt, fill)
    return Finding(
        "prefill", "warn", "Reading the prompts takes long", tuple(evidence), turn,
        f"TTFT is mostly prefill, not queue: {more}.",
        changes, cost=w.seconds_of(in_state("prefill")),
    )  # fmt: skip


def _read_faster(w: Window, prompt: float | None, fill: float | None) -> tuple[dict[str, Value], str, str]:
    limits, late = w.last.limits, w.latency
    if limits.prefix_cache is False:
        more = "with the prefix cache a conversation, or a repeated beginning, is read once and not at every turn"
        return {"prefix_cache": True}, "prefix_cache off → on", more
    streams = w.mean(in_state("decode")) or 0.0
    if limits.itl_target and streams >= 0.5:
        better = 2 * limits.itl_target
        more = "the ITL target cuts prefill for those who watch text stream; a higher one lets a step read more"
        return {"itl_target": better}, f"itl_target {limits.itl_target} → {better}", more
    shorter = "shorter prompts: less history, fewer documents"
    budget = limits.budget
    if budget is None or limits.itl_target:
        return {}, shorter, "the prompts must get shorter, or the machine faster"
    if max(late.itl_p95 or 0.0, _pause(w.frames)) >= SLOW_GAP:
        return {}, shorter, "a larger budget would make those who watch text stream wait, so prompts must get shorter"
    # A step may take as long as a gap between tokens that nobody minds.
    step = _step_seconds(w) or (fill * budget / prompt if prompt and fill else None)
    borne = 2 * budget if step is None else power_of_two(budget * SLOW_GAP / step)
    better = bounded("budget", min(borne, 8 * budget))
    if better <= budget or (prompt is not None and prompt <= budget):
        return {}, shorter, "each step is long already, so a larger budget would save nothing; more cores would"
    more = "a larger budget reads more of it in each step, and there is room for that in the ITL"
    return {"budget": better}, f"budget {budget} → {better}", more


def _step_seconds(w: Window) -> float | None:
    """How long a step takes on average, from what the engine counted; ``None`` if it does not count steps."""
    steps, busy = w.rose("steps"), w.seconds_of(lambda frame: float(occupied(frame) > 0))
    return busy / steps if steps and busy else None


def decode(w: Window) -> Finding | None:
    """Text comes slower than it is read, with few streams or many."""
    late, slots = w.latency, w.last.limits.slots
    if late.itl_p50 is None or late.itl_count < FEW_GAPS or late.itl_p50 < SLOW_GAP:
        return None

    def writing(frame: Frame) -> int:
        return in_state("decode")(frame) if frame.slots else frame.running or 0

    streams = w.mean(writing) or 0.0
    evidence = [f"ITL p50 {time_text(late.itl_p50)}, p95 {time_text(late.itl_p95)} (n={late.itl_count})"]
    speed = w.highest(lambda frame: frame.generated_per_second)
    if speed is not None:
        evidence.append(f"{streams:.1f} streams at a time on average, up to {speed:.0f} tok/s together")
    target = max(1, int(streams * SLOW_GAP / late.itl_p50))
    changes: dict[str, Value] = {}
    if slots and slots > 1 and streams >= 2 and target < slots:
        changes, turn = {"slots": target}, f"slots {slots} → {target}"
    else:
        turn = "a smaller model, or weights of fewer bits"
    return Finding(
        "decode", "warn", "Text comes slower than people read", tuple(evidence), turn,
        "Each token of each stream needs its share of the machine: fewer streams at once, a smaller model or a faster "
        "machine make the steps shorter.",
        changes, cost=w.seconds_of(writing) * (1 - SLOW_GAP / late.itl_p50),
    )  # fmt: skip


def budget(w: Window) -> Finding | None:
    """Streams stop while a large piece of somebody's prompt is read."""
    late, limits = w.latency, w.last.limits
    usual, now = late.itl_p50, limits.budget
    if usual is None or late.itl_count < FEW_GAPS or now is None or now <= MIN_BUDGET or limits.itl_target:
        return None
    reading = [frame for frame in w.frames if _disturbed(frame)]
    share = len(reading) / len(w.frames)
    longest = min(late.itl_max or 0.0, _longest_step(w, now))  # one gap may have other causes, so it must be long
    pause = max(_pause(w.frames), late.itl_p95 or 0.0, longest if longest >= 2 * SLOW_GAP else 0.0)
    if pause < max(STUTTER * usual, 1.5 * SLOW_GAP) or share < 0.05:
        return None
    read = min(now, max(s.prompt_tokens or now for f in reading for s in f.slots if s.state == "prefill"))
    better = max(MIN_BUDGET, min(now // 2, power_of_two(read * SLOW_GAP / pause)))
    return Finding(
        "budget", "warn", "Others' prompts make streams stutter",
        (f"ITL p50 {time_text(usual)}, but up to {time_text(pause)} while a prompt was read "
         f"(n={late.itl_count}, longest {time_text(late.itl_max)})",
         f"a prompt was read beside streams in {share:.0%} of the time, up to {read} tokens in a step"),
        f"budget {now} → {better}",
        "A step that reads a piece of a prompt is longer for everyone in it; smaller pieces make smoother text and a "
        "later first token.",
        {"budget": better},
        cost=w.seconds_of(lambda f: in_state("decode")(f) * _disturbed(f)) * (1 - usual / pause),
    )  # fmt: skip


def _disturbed(frame: Frame) -> bool:
    """Somebody's prompt is read while others watch text stream."""
    return bool(in_state("prefill")(frame) and in_state("decode")(frame))


def _longest_step(w: Window, budget: int) -> float:
    """Seconds of the longest step that read a prompt, if nobody else's was read in it: an upper bound."""
    steps = [0.0]
    for slot in (seen.slot for seen in w.requests):
        so_far = (slot.age or 0.0) - (slot.queue_wait or 0.0) - (slot.intake or 0.0)
        reading = slot.prefill if slot.prefill is not None else so_far if slot.state == "prefill" else 0.0
        steps.append(reading * min(1.0, budget / max(1, slot.prompt_tokens or 1)))
    return max(steps)


def _pause(frames: Sequence[Frame]) -> float:
    """Seconds to the next token of a stream while a prompt was read, from frame to frame; 0 if none was."""
    waited, tokens = 0.0, 0
    for frame, after in pairwise(frames):
        if not _disturbed(frame):
            continue
        written = {slot.request_id: slot.output_tokens or 0 for slot in after.slots if slot.state == "decode"}
        for slot in frame.slots:
            if slot.state == "decode" and slot.request_id in written:
                waited += after.time - frame.time
                tokens += written[slot.request_id] - (slot.output_tokens or 0)
    return waited / max(1, tokens)
