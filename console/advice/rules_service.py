"""Rules about the service as a whole: sudden ends, faults, refusals, prompts that are too long, cold starts."""

from __future__ import annotations

import time

from slotdeck.console.advice.finding import ACCEPTABLE_WAIT, GIVE_UP_SECONDS, SLOW_TTFT, Finding, bounded
from slotdeck.console.advice.room import another_slot, larger_pool
from slotdeck.console.advice.units import time_text
from slotdeck.console.advice.window import Window, occupied
from slotdeck.engine.telemetry.frame import Frame

MAX_NAMES = 4
"""Users who are named; a longer list ends with "and others"."""
SLOW_LOAD = 1.0
"""Seconds of loading from which a single restart is reported. Several restarts are always reported."""
MAX_ENDS = 3
"""Sudden ends that are described one by one."""


def died(window: Window) -> Finding | None:
    """The engine ended while it served, without draining first as every normal stop does."""
    ends = [frame for frame in window.final_frames if frame.health == "ok" and frame.in_flight]
    if not ends:
        return None
    shown = ends[-MAX_ENDS:]
    evidence = [
        f"its last record, from {time.strftime('%H:%M:%S', time.localtime(frame.time))}, has {frame.in_flight} "
        f"{'request' if frame.in_flight == 1 else 'requests'} in flight{_memory(frame)}"
        for frame in shown
    ]
    if len(ends) > len(shown):
        evidence.insert(0, f"this happened {len(ends)} times; the last {len(shown)}:")
    lost = [slot for frame in ends for slot in frame.slots if slot.request_id]
    return Finding(
        "died", "critical", "The engine ended suddenly while it served", tuple(evidence),
        "find out how it ended: read engine.log (`slotdeck info` shows its path), and `journalctl -k` for processes "
        "that were killed for lack of memory",
        "A normal stop finishes running requests first. This engine was killed, ran out of memory or crashed, or the "
        "machine went down.",
        cost=sum(slot.age or 0.0 for slot in lost),
    )  # fmt: skip


def _memory(frame: Frame) -> str:
    """``, memory 97% full``; empty if it is unknown."""
    used, total = frame.host.memory_used, frame.host.memory_total
    return f", memory {used / total:.0%} full" if used is not None and total else ""


def fault(window: Window) -> Finding | None:
    """Steps failed, or the engine stopped because of a fault."""
    faults = sum(event.kind == "engine_fault" for frame in window.frames for event in frame.events)
    failed = window.increase("failed")
    if window.newest.health != "fault" and not faults:
        return None
    reason = window.newest.health_reason if window.newest.health == "fault" else None
    evidence = [f"{faults} steps failed, and {failed} requests with them"] if faults or failed else []
    lost = {event.request_id for frame in window.frames for event in frame.events if event.kind == "failed"}
    return Finding(
        "fault", "critical", "The engine had faults", (*evidence, *([reason] if reason else [])),
        "read engine.log; `slotdeck info` shows its path",
        "What the engine computed in a failed step was lost; its log has the cause.",
        cost=sum(seen.slot.age or 0.0 for seen in window.requests if seen.slot.request_id in lost),
    )  # fmt: skip


def refused(window: Window) -> Finding | None:
    """Requests were refused with 503: either the queue is too short, or it limits a wait that would be too long."""
    count, received = window.increase("rejected"), window.increase("received")
    depth, slots = window.last.limits.queue, window.last.limits.slots
    if not count or depth is None or not slots or window.newest.health != "ok":
        return None
    users = sorted({e.user for f in window.frames for e in f.events if e.kind == "rejected" and e.user})
    evidence = [f"{count} of {max(count, received)} requests were refused with 503{_named(users)}"]
    pace = seconds_per_place(window)
    next_wait = None if pace is None else (depth + 1) * pace
    evidence.append(
        f"the queue of {depth} was full {window.share(lambda f: (f.waiting_count or 0) >= depth):.0%} of the time"
        + (f"; it moves forward every {time_text(pace)}" if depth and pace is not None else "")
        if depth
        else f"queue is 0: no request may wait for one of the {slots} slots"
    )
    # A refused client returns after about the wait at the end of the queue. No user loses more than the whole time.
    away = count * min(GIVE_UP_SECONDS, max(1.0, depth * (pace or 0.0)))
    cost = min(away, len(users) * window.seconds) if users else away
    changes, remedy = another_slot(window, more=slots)
    if pace is not None and next_wait is not None and next_wait < ACCEPTABLE_WAIT:
        title = "Requests are refused because the queue is set to 0" if depth == 0 else "The queue is full"
        explanation = f"The next request would have waited about {time_text(next_wait)}, which is better than a refusal"
        if "slots" in changes or "mode" in changes:
            return Finding("refused", "warn", title, tuple(evidence), remedy,
                           f"{explanation}; it is best to let more requests run at once.", changes, cost)  # fmt: skip
        better = bounded("queue", max(depth + 1, int(ACCEPTABLE_WAIT / pace) - 1))
        return Finding("refused", "warn", title, tuple(evidence), f"queue {depth} → {better}",
                       f"{explanation}.", {"queue": better}, cost)  # fmt: skip
    already = ""
    if next_wait is not None and depth:
        already = f", and a request at its end waits about {time_text(next_wait)} already"
    return Finding(
        "refused", "warn", "More requests arrive than can be served", tuple(evidence), remedy,
        f"The queue refuses requests that could not be served in time{already}, so a longer queue would not help.",
        changes, cost,
    )  # fmt: skip


def seconds_per_place(window: Window) -> float | None:
    """How often the queue moves forward by one place, in seconds; ``None`` if no served request ended.

    This is the time in which requests ran, divided by the number of served requests that ended. Those that gave up
    waiting are counted as cancelled too, but never held a slot, so they are subtracted.
    """
    ended = window.increase("finished") + window.increase("cancelled") - window.increase("gave_up_waiting")
    busy = window.person_seconds(lambda frame: float(occupied(frame) >= 1))
    return busy / ended if ended > 0 and busy > 0 else None


def context(window: Window) -> Finding | None:
    """Prompts were refused because they and one token of an answer do not fit the context."""
    count = window.increase("too_long")
    if not count:
        return None
    now, trained, total = window.last.limits.context, window.last.engine.trained_context, window.last.pool.total
    users = sorted({e.user for f in window.frames for e in f.events if e.kind == "too_long" and e.user})
    evidence = [f"{count} {'prompts were' if count > 1 else 'prompt was'} refused: longer than the context of {now}"]
    if users:
        evidence.append(_named(users).removeprefix(", "))
    possible = min((value for value in (trained, total, (now or 0) * 2) if value), default=0)
    changes = {}
    if now and possible > now:
        changes, remedy = {"context": possible}, f"context {now} → {possible}"
    elif now and trained and trained > now and total:
        longer = min(trained, 2 * now)
        pool = larger_pool(window, max(longer, total * longer // now))
        if pool is not None:
            changes = {"kv_tokens": pool, "context": longer}
            remedy = f"context {now} → {longer}, with a larger pool: kv_tokens {total} → {pool}"
        else:
            remedy = "keep conversations shorter: there is no memory for a larger pool"
    else:
        remedy = "keep conversations shorter: the model was not trained for a longer context"
    return Finding(
        "context", "warn", "Prompts do not fit the context", tuple(evidence), remedy,
        "Slotdeck refuses a prompt that does not fit. It never cuts a prompt, because the model would then answer "
        "without having seen its beginning.",
        changes,
    )  # fmt: skip


def cold_start(window: Window) -> Finding | None:
    """The engine restarted, or the first request after a quiet time took much longer than the others."""
    times = [seen.slot.ttft for seen in window.requests if not seen.after_quiet and seen.slot.ttft is not None]
    usual = sorted(times)[len(times) // 2] if len(times) >= 3 else None
    cold = [
        seen.slot.ttft
        for seen in window.requests
        if seen.after_quiet and usual and seen.slot.ttft is not None and seen.slot.ttft > max(3 * usual, SLOW_TTFT)
    ]
    evidence = []
    load = window.last.engine.load_seconds or 0.0
    restarts = window.boots - 1 if window.boots > 2 or load >= SLOW_LOAD else 0
    if restarts:
        evidence.append(
            f"the engine restarted {'once' if restarts == 1 else f'{restarts} times'} within "
            f"{time_text(window.whole_seconds)}" + (f", and each start took {time_text(load)} to load" if load else "")
        )
    if cold:
        evidence.append(
            f"{len(cold)} first requests after a quiet minute took up to {time_text(max(cold))}, "
            f"the others {time_text(usual)}"
        )
    if not evidence:
        return None
    return Finding(
        "cold_start", "warn", "Some requests wait for a cold start", tuple(evidence),
        "keep the engine running, for example `slotdeck serve` as a service; for another server, raise its keep-alive "
        "time",
        "After a restart, or after the model was unloaded, the model is loaded again before the first token.",
        cost=restarts * load + sum(ttft - (usual or 0.0) for ttft in cold),
    )  # fmt: skip


def _named(users: list[str]) -> str:
    """``, from laptop, phone and others``; empty if no user is known."""
    if not users:
        return ""
    return f", from {', '.join(users[:MAX_NAMES])}" + (" and others" if len(users) > MAX_NAMES else "")
