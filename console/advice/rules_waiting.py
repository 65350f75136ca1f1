"""Rules about the queue: requests wait for a slot, for room in the pool, or longer than anybody stays."""

from __future__ import annotations

from math import ceil

from slotdeck.console.advice.finding import GIVE_UP_SECONDS, MIN_REQUESTS, NOTICEABLE_WAIT, Finding, Level, bounded
from slotdeck.console.advice.room import another_slot, larger_pool
from slotdeck.console.advice.units import time_text
from slotdeck.console.advice.window import Window, in_state, occupied
from slotdeck.engine.telemetry.frame import Frame


def queue(window: Window) -> Finding | None:
    """Requests run at normal speed, but wait long for a slot or for room in the pool."""
    latency, limits = window.latency, window.last.limits
    wait, ttft = latency.wait_p95, latency.ttft_p95
    if wait is None or ttft is None or latency.wait_count < MIN_REQUESTS:
        return None
    if wait < NOTICEABLE_WAIT or wait < ttft / 2:
        return None
    waiting = [frame for frame in window.frames if frame.waiting_count]
    most = window.max_of(lambda frame: frame.waiting_count) or 0
    slots, mode = limits.slots or 0, limits.mode
    level: Level = "critical" if wait > GIVE_UP_SECONDS else "warn"
    cost = window.person_seconds(lambda f: f.waiting_count or 0)
    evidence = [
        f"95% of the requests waited up to {time_text(wait)} for a slot; TTFT p95 is {time_text(ttft)} "
        f"(n={latency.wait_count})"
    ]
    if mode == "serial":
        evidence.append(f"mode serial runs one request at a time on its {slots} slots; up to {most:.0f} waited")
        changes, remedy = another_slot(window, more=slots)
        return Finding(
            "queue", level, "Requests run one at a time", tuple(evidence), remedy,
            "A second stream in the same step is almost free, but in this mode it must wait until the first one ends.",
            changes, cost,
        )  # fmt: skip
    if mode == "static" and slots > 1:
        held = window.person_seconds(in_state("held"))
        evidence.append(
            f"slots stayed empty for {time_text(held)} after their requests had ended; up to {most:.0f} requests waited"
        )
        return Finding(
            "queue", level, "Each batch waits for its slowest request", tuple(evidence), "mode static → continuous",
            "A slot whose request has ended stays empty until the longest answer of its batch is done.",
            {"mode": "continuous"}, cost,
        )  # fmt: skip
    full = sum(occupied(frame) >= (frame.limits.slots or 1) for frame in waiting)
    busy = window.share(lambda frame: occupied(frame) >= (frame.limits.slots or 1))
    all_busy = "the one slot was" if slots == 1 else f"all {slots} slots were"
    evidence.append(f"{all_busy} busy {busy:.0%} of the time; up to {most:.0f} requests waited")
    if window.max_pool_usage is not None:
        evidence.append(f"up to {window.max_pool_usage:.0%} of the KV pool was live")
    mean = sum(frame.waiting_count or 0 for frame in waiting) / len(waiting) if waiting else 1.0
    if waiting and full < len(waiting) / 2:
        return _no_room(window, evidence, mean, cost)
    changes, remedy = another_slot(window, more=round(mean))
    itl = f", which is {time_text(latency.itl_p50)} now" if latency.itl_p50 is not None else ""
    return Finding(
        "queue", level, "Requests wait for a slot", tuple(evidence), remedy,
        f"Most of the TTFT is waiting. With more slots requests start at once; each slot adds a little to the ITL of "
        f"all streams{itl}.",
        changes, cost,
    )  # fmt: skip


def _no_room(window: Window, evidence: list[str], mean: float, cost: float) -> Finding:
    total = window.last.pool.total
    running = window.mean(occupied) or 1.0
    size = larger_pool(window, ceil(total * (1 + mean / max(1.0, running)))) if total else None
    return Finding(
        "queue", "warn", "Requests wait for room in the KV pool", tuple(evidence),
        f"a larger pool: kv_tokens {total} → {size}" if size else
        "keep prompts shorter: there is no memory for a larger pool",
        "Slots are free, but the pool has no room for the next prompt. More slots would not help.",
        {"kv_tokens": size} if size else {}, cost,
    )  # fmt: skip


def deep_queue(window: Window) -> Finding | None:
    """The queue is so long that requests at its end are abandoned before they are served."""
    depth, slots = window.last.limits.queue, window.last.limits.slots or 1
    paces = [one.estimate / place for f in window.frames for place, one in enumerate(f.waiting, 1) if one.estimate]
    if not paces or not depth:
        return None
    pace = sorted(paces)[len(paces) // 2]
    longest = window.max_of(lambda f: max((one.waited or 0.0 for one in f.waiting), default=None)) or 0.0
    gave_up = window.increase("gave_up_waiting")
    if depth * pace <= 2 * GIVE_UP_SECONDS or (not gave_up and longest < GIVE_UP_SECONDS):
        return None
    better = bounded("queue", max(slots if slots * pace <= GIVE_UP_SECONDS else 1, int(GIVE_UP_SECONDS / pace)))
    if better >= depth:
        return None
    return Finding(
        "deep_queue", "warn", "The queue is longer than people wait",
        (f"the queue moves forward every {time_text(pace)}, so the last of {depth} would wait about "
         f"{time_text(depth * pace)}",
         f"{gave_up} gave up waiting; the longest wait was {time_text(longest)}"),
        f"queue {depth} → {better}",
        "People at its end leave before they are served. A shorter queue refuses them at once with 503, so that their "
        "client can tell them.",
        {"queue": better}, cost=_wasted_wait(window.frames),
    )  # fmt: skip


def _wasted_wait(frames: list[Frame]) -> float:
    """Seconds that requests waited which then left the queue without ever holding a slot."""
    waited: dict[str, float] = {}
    for frame in frames:
        waited |= {one.request_id: one.waited or 0.0 for one in frame.waiting}
    served = {slot.request_id for frame in frames for slot in frame.slots}
    still_waiting = {one.request_id for one in frames[-1].waiting}
    admitted = {event.request_id for f in frames for event in f.events if event.kind == "admitted"}
    return sum(seconds for name, seconds in waited.items() if name not in served | still_waiting | admitted)
