"""Rules about speed: reading prompts, writing text, and how one slows down the other."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from slotdeck.console.advice.finding import (
    MIN_GAPS,
    MIN_REQUESTS,
    SLOW_ITL,
    SLOW_TTFT,
    Finding,
    Value,
    bounded,
    power_of_two,
)
from slotdeck.console.advice.units import time_text
from slotdeck.console.advice.window import Window, in_state, occupied
from slotdeck.engine.telemetry.frame import Frame

MIN_BUDGET = 16
"""With a smaller budget a prompt would take far too long to read, however smooth the streams are."""
STUTTER = 4.0
"""People notice a gap that is this many times the usual one."""
SHORTER_PROMPTS = "keep prompts shorter: less history, fewer documents"


def prefill(window: Window) -> Finding | None:
    """The first token is late although nobody waits: long prompts, a small budget, or no prefix cache."""
    latency, limits = window.latency, window.last.limits
    ttft, wait = latency.ttft_p95, latency.wait_p95 or 0.0
    if ttft is None or latency.ttft_count < MIN_REQUESTS or ttft < SLOW_TTFT or ttft - wait < 0.6 * ttft:
        return None
    slow = [seen.slot for seen in window.requests if (seen.slot.prefill or 0.0) > ttft / 2]
    prompt = median(slot.prompt_tokens or 0 for slot in slow) if slow else None
    seconds = median(slot.prefill or 0.0 for slot in slow) if slow else None
    evidence = [
        f"TTFT p95 is {time_text(ttft)}, of which at most {time_text(wait)} is waiting (n={latency.ttft_count})"
    ]
    if prompt is not None and seconds is not None:
        evidence.append(
            f"{len(slow)} of {len(window.requests)} requests took about {time_text(seconds)} to read {prompt:.0f} "
            "prompt tokens"
        )
    if window.last.prompt_per_second is not None:
        most = window.max_of(lambda f: f.prompt_per_second) or 0
        evidence.append(f"prefill ran at up to {most:.0f} tok/s with a budget of {limits.budget}")
    cached, computed = window.increase("cached_tokens"), window.increase("prompt_tokens")
    if cached + computed:
        off = ", which is off" if limits.prefix_cache is False else ""
        evidence.append(f"{cached / (cached + computed):.0%} of the prompt tokens came from the prefix cache{off}")
    changes, remedy, explanation = _read_faster(window, prompt, seconds)
    return Finding(
        "prefill", "warn", "Reading the prompts takes long", tuple(evidence), remedy,
        f"Most of the TTFT is prefill, not waiting: {explanation}.",
        changes, cost=window.person_seconds(in_state("prefill")),
    )  # fmt: skip


def _read_faster(window: Window, prompt: float | None, seconds: float | None) -> tuple[dict[str, Value], str, str]:
    """The change, the remedy and the explanation; ``seconds`` is how long the slow prompts took to read."""
    limits, latency = window.last.limits, window.latency
    if limits.prefix_cache is False:
        explanation = "with the prefix cache, text that requests have in common is read once and not at every turn"
        return {"prefix_cache": True}, "prefix_cache off → on", explanation
    streams = window.mean(in_state("decode")) or 0.0
    if limits.itl_target and streams >= 0.5:
        better = 2 * limits.itl_target
        explanation = "the ITL target limits prefill to keep streams smooth; with a higher one a step reads more"
        return {"itl_target": better}, f"itl_target {limits.itl_target} → {better}", explanation
    budget = limits.budget
    if budget is None or limits.itl_target:
        return {}, SHORTER_PROMPTS, "prompts must become shorter, or the machine faster"
    if max(latency.itl_p95 or 0.0, _pause(window.frames)) >= SLOW_ITL:
        return {}, SHORTER_PROMPTS, "a larger budget would make streams stutter, so prompts must become shorter"
    # A step may take as long as a gap between tokens that nobody minds.
    step = _step_seconds(window) or (seconds * budget / prompt if prompt and seconds else None)
    affordable = 2 * budget if step is None else power_of_two(budget * SLOW_ITL / step)
    better = bounded("budget", min(affordable, 8 * budget))
    if better <= budget or (prompt is not None and prompt <= budget):
        explanation = "each step already takes long, so a larger budget would not help, but more cores would"
        return {}, SHORTER_PROMPTS, explanation
    explanation = "with a larger budget each step reads more of a prompt, and the ITL has room for that"
    return {"budget": better}, f"budget {budget} → {better}", explanation


def _step_seconds(window: Window) -> float | None:
    """The average duration of a step; ``None`` if the engine does not count steps."""
    steps, busy = window.increase("steps"), window.person_seconds(lambda frame: float(occupied(frame) > 0))
    return busy / steps if steps and busy else None


def decode(window: Window) -> Finding | None:
    """Text appears more slowly than people read, with few streams or with many."""
    latency, slots = window.latency, window.last.limits.slots
    if latency.itl_p50 is None or latency.itl_count < MIN_GAPS or latency.itl_p50 < SLOW_ITL:
        return None

    def decoding(frame: Frame) -> int:
        return in_state("decode")(frame) if frame.slots else frame.running or 0

    streams = window.mean(decoding) or 0.0
    evidence = [f"ITL p50 {time_text(latency.itl_p50)}, p95 {time_text(latency.itl_p95)} (n={latency.itl_count})"]
    speed = window.max_of(lambda frame: frame.generated_per_second)
    if speed is not None:
        evidence.append(f"{streams:.1f} streams at a time on average, up to {speed:.0f} tok/s together")
    target = max(1, int(streams * SLOW_ITL / latency.itl_p50))
    changes: dict[str, Value] = {}
    if slots and slots > 1 and streams >= 2 and target < slots:
        changes, remedy = {"slots": target}, f"slots {slots} → {target}"
    else:
        remedy = "a smaller model, or weights with fewer bits"
    return Finding(
        "decode", "warn", "Text appears more slowly than people read", tuple(evidence), remedy,
        "Every stream adds work to each step. Fewer streams at once, a smaller model or a faster machine make steps "
        "shorter.",
        changes, cost=window.person_seconds(decoding) * (1 - SLOW_ITL / latency.itl_p50),
    )  # fmt: skip


def budget(window: Window) -> Finding | None:
    """Streams pause while a large piece of another request's prompt is read."""
    latency, limits = window.latency, window.last.limits
    usual, now = latency.itl_p50, limits.budget
    if usual is None or latency.itl_count < MIN_GAPS or now is None or now <= MIN_BUDGET or limits.itl_target:
        return None
    reading = [frame for frame in window.frames if _disturbed(frame)]
    share = len(reading) / len(window.frames)
    longest = min(latency.itl_max or 0.0, _longest_step(window, now))
    # A single gap may have other causes, so it counts only if it is long.
    pause = max(_pause(window.frames), latency.itl_p95 or 0.0, longest if longest >= 2 * SLOW_ITL else 0.0)
    if pause < max(STUTTER * usual, 1.5 * SLOW_ITL) or share < 0.05:
        return None
    read = min(now, max(s.prompt_tokens or now for f in reading for s in f.slots if s.state == "prefill"))
    better = max(MIN_BUDGET, min(now // 2, power_of_two(read * SLOW_ITL / pause)))
    return Finding(
        "budget", "warn", "Streams stutter while prompts are read",
        (f"ITL p50 is {time_text(usual)}, but gaps of up to {time_text(pause)} appear while a prompt is read "
         f"(n={latency.itl_count}, longest {time_text(latency.itl_max)})",
         f"a prompt was read beside streams {share:.0%} of the time, up to {read} tokens in a step"),
        f"budget {now} → {better}",
        "A step that reads a piece of a prompt is longer for every stream in it. Smaller pieces make text smoother and "
        "the first token later.",
        {"budget": better},
        cost=window.person_seconds(lambda f: in_state("decode")(f) * _disturbed(f)) * (1 - usual / pause),
    )  # fmt: skip


def _disturbed(frame: Frame) -> bool:
    """True while the engine reads a prompt and streams text to somebody else."""
    return bool(in_state("prefill")(frame) and in_state("decode")(frame))


def _longest_step(window: Window, budget: int) -> float:
    """An upper bound for the longest step that read a prompt, in seconds.

    It is exact if each step read the prompt of one request only.
    """
    steps = [0.0]
    for slot in (seen.slot for seen in window.requests):
        so_far = (slot.age or 0.0) - (slot.queue_wait or 0.0) - (slot.intake or 0.0)
        reading = slot.prefill if slot.prefill is not None else so_far if slot.state == "prefill" else 0.0
        steps.append(reading * min(1.0, budget / max(1, slot.prompt_tokens or 1)))
    return max(steps)


def _pause(frames: Sequence[Frame]) -> float:
    """The average time to the next token of a stream while a prompt was read, from frame to frame.

    In seconds; 0 if no prompt was read beside a stream.
    """
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
