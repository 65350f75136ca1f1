"""Rules about the queue: who waits for a slot, for room in the pool, or for a turn that never comes."""

from __future__ import annotations

from math import ceil

from slotdeck.console.advice.finding import FEW_REQUESTS, NOTICED_WAIT, PATIENCE, Finding, Level, bounded, time_text
from slotdeck.console.advice.room import another_slot, larger_pool
from slotdeck.console.advice.window import Window, in_state, occupied
from slotdeck.engine.telemetry.frame import Frame


def queue(w: Window) -> Finding | None:
    """Normal speed, but long waits for a slot or for room in the pool."""
    late, limits = w.latency, w.last.limits
    wait, ttft = late.wait_p95, late.ttft_p95
    if wait is None or ttft is None or late.wait_count < FEW_REQUESTS or wait < NOTICED_WAIT or wait < ttft / 2:
        return None
    waiting = [frame for frame in w.frames if frame.waiting_count]
    most = w.highest(lambda frame: frame.waiting_count) or 0
    slots, mode = limits.slots or 0, limits.mode
    level: Level = "critical" if wait > PATIENCE else "warn"
    cost = w.seconds_of(lambda f: f.waiting_count or 0)
    evidence = [f"95% waited up to {time_text(wait)} for a slot, of {time_text(ttft)} to the first token "
                f"(n={late.wait_count})"]  # fmt: skip
    if mode == "serial":
        evidence.append(f"mode serial runs one at a time, whatever the slots ({slots}); up to {most:.0f} waited")
        changes, turn = another_slot(w, more=slots)
        return Finding(
            "queue", level, "Requests run one at a time", tuple(evidence), turn,
            "A second stream in the same step is almost free, but in this mode it must wait for the first to end.",
            changes, cost,
        )  # fmt: skip
    if mode == "static" and slots > 1:
        held = w.seconds_of(in_state("held"))
        evidence.append(f"slots were held for {time_text(held)} after their request had ended; up to {most:.0f} waited")
        return Finding(
            "queue", level, "Each batch waits for its slowest", tuple(evidence), "mode static → continuous",
            "A slot whose request has ended stays empty until the longest answer of its batch is done.",
            {"mode": "continuous"}, cost,
        )  # fmt: skip
    full = sum(occupied(frame) >= (frame.limits.slots or 1) for frame in waiting)
    busy = w.share(lambda frame: occupied(frame) >= (frame.limits.slots or 1))
    all_busy = "the one slot" if slots == 1 else f"all {slots} slots"
    evidence.append(f"{all_busy} busy in {busy:.0%} of the time, up to {most:.0f} waited")
    if w.fullest is not None:
        evidence.append(f"the KV pool was at most {w.fullest:.0%} live")
    mean = sum(frame.waiting_count or 0 for frame in waiting) / len(waiting) if waiting else 1.0
    if waiting and full < len(waiting) / 2:
        return _no_room(w, evidence, mean, cost)
    changes, turn = another_slot(w, more=round(mean))
    itl = f", now {time_text(late.itl_p50)}" if late.itl_p50 is not None else ""
    return Finding(
        "queue", level, "Requests wait for a slot", tuple(evidence), turn,
        f"TTFT is mostly queue: more slots let them start at once, and each adds a little to everyone's ITL{itl}.",
        changes, cost,
    )  # fmt: skip


def _no_room(w: Window, evidence: list[str], mean: float, cost: float) -> Finding:
    total = w.last.pool.total
    running = w.mean(occupied) or 1.0
    size = larger_pool(w, ceil(total * (1 + mean / max(1.0, running)))) if total else None
    return Finding(
        "queue", "warn", "Requests wait for room in the KV pool", tuple(evidence),
        f"a larger pool: kv_tokens {total} → {size}" if size else "shorter prompts: the memory holds no larger pool",
        "Slots are free, but the pool has no room for the next prompt: more slots would change nothing.",
        {"kv_tokens": size} if size else {}, cost,
    )  # fmt: skip


def deep_queue(w: Window) -> Finding | None:
    """A queue so long that those at its end leave before they are served."""
    depth, slots = w.last.limits.queue, w.last.limits.slots or 1
    paces = [one.estimate / place for f in w.frames for place, one in enumerate(f.waiting, 1) if one.estimate]
    if not paces or not depth:
        return None
    pace = sorted(paces)[len(paces) // 2]
    longest = w.highest(lambda f: max((one.waited or 0.0 for one in f.waiting), default=None)) or 0.0
    left = w.rose("gave_up_waiting")
    if depth * pace <= 2 * PATIENCE or (not left and longest < PATIENCE):
        return None
    better = bounded("queue", max(slots if slots * pace <= PATIENCE else 1, int(PATIENCE / pace)))
    if better >= depth:
        return None
    return Finding(
        "deep_queue", "warn", "The queue promises more than it can keep",
        (f"a place moves on every {time_text(pace)}, so the last of {depth} would wait about {time_text(depth * pace)}",
         f"{left} gave up waiting, the longest wait was {time_text(longest)}"),
        f"queue {depth} → {better}",
        "Those at its end leave before they are served; a shorter queue refuses them at once with 503, and their "
        "client can say so.",
        {"queue": better}, cost=_waited_for_nothing(w.frames),
    )  # fmt: skip


def _waited_for_nothing(frames: list[Frame]) -> float:
    """Seconds waited by requests that vanished from the queue and were never seen in a slot."""
    waited: dict[str, float] = {}
    for frame in frames:
        waited |= {one.request_id: one.waited or 0.0 for one in frame.waiting}
    served = {slot.request_id for frame in frames for slot in frame.slots}
    waits_still = {one.request_id for one in frames[-1].waiting}
    admitted = {event.request_id for f in frames for event in f.events if event.kind == "admitted"}
    return sum(time for name, time in waited.items() if name not in served | waits_still | admitted)
