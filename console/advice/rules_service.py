"""Rules about the service as a whole: sudden ends, faults, 503s, prompts without room, cold starts."""

from __future__ import annotations

import time

from slotdeck.console.advice.finding import (
    BORNE_WAIT,
    PATIENCE,
    SLOW_START,
    Finding,
    bounded,
    time_text,
)
from slotdeck.console.advice.room import another_slot, larger_pool
from slotdeck.console.advice.window import Window, occupied
from slotdeck.engine.telemetry.frame import Frame

NAMES_TOLD = 4
"""Users who are named; of more it is said that there are others."""
SLOW_LOAD = 1.0
"""Seconds of loading from which a single restart is worth a word; more restarts always are."""
MAX_ENDS_TOLD = 3
"""Sudden ends that are told one by one."""


def died(w: Window) -> Finding | None:
    """An engine that ended in the middle of its work, without the draining that every stop begins with."""
    ends = [frame for frame in w.last_words if frame.health == "ok" and in_flight(frame)]
    if not ends:
        return None
    shown = ends[-MAX_ENDS_TOLD:]
    evidence = [
        f"its last record, of {time.strftime('%H:%M:%S', time.localtime(frame.time))}, has {in_flight(frame)} "
        f"{'request' if in_flight(frame) == 1 else 'requests'} in flight{_memory(frame)}"
        for frame in shown
    ]
    if len(ends) > len(shown):
        evidence.insert(0, f"{len(ends)} times, the last {len(shown)} of them:")
    lost = [slot for frame in ends for slot in frame.slots if slot.request_id]
    return Finding(
        "died", "critical", "The engine ended suddenly while it served", tuple(evidence),
        "see how it ended: engine.log, which `slotdeck info` names, and `journalctl -k` for what ran out of memory",
        "A stop finishes what runs first; this end was none: killed, out of memory, or the machine went down.",
        cost=sum(slot.age or 0.0 for slot in lost),
    )  # fmt: skip


def in_flight(frame: Frame) -> int:
    """Requests that run or wait; of an unknown number none."""
    return (frame.running or 0) + (frame.waiting_count or 0)


def _memory(frame: Frame) -> str:
    """``, memory 97% full``; empty when it is not known."""
    used, total = frame.host.memory_used, frame.host.memory_total
    return f", memory {used / total:.0%} full" if used is not None and total else ""


def fault(w: Window) -> Finding | None:
    """Steps that failed, or an engine that stopped."""
    faults = sum(event.kind == "engine_fault" for frame in w.frames for event in frame.events)
    failed = w.rose("failed")
    if w.newest.health != "fault" and not faults:
        return None
    reason = w.newest.health_reason if w.newest.health == "fault" else None
    evidence = [f"{faults} steps failed, {failed} requests with them"] if faults or failed else []
    lost = {event.request_id for frame in w.frames for event in frame.events if event.kind == "failed"}
    return Finding(
        "fault", "critical", "The engine had faults", (*evidence, *([reason] if reason else [])),
        "read engine.log, `slotdeck info` says where", "What it computed in a failed step was lost; see its log.",
        cost=sum(seen.slot.age or 0.0 for seen in w.requests if seen.slot.request_id in lost),
    )  # fmt: skip


def refused(w: Window) -> Finding | None:
    """503, by load or on purpose: the wait at the end of the queue tells which."""
    count, received = w.rose("rejected"), w.rose("received")
    depth, slots = w.last.limits.queue, w.last.limits.slots
    if not count or depth is None or not slots or w.newest.health != "ok":
        return None
    users = sorted({e.user for f in w.frames for e in f.events if e.kind == "rejected" and e.user})
    evidence = [f"{count} of {max(count, received)} requests refused with 503{_named(users)}"]
    pace = seconds_per_place(w)
    last = None if pace is None else (depth + 1) * pace
    evidence.append(
        f"the queue of {depth} was full in {w.share(lambda f: (f.waiting_count or 0) >= depth):.0%} of the time"
        + (f"; a place moves on every {time_text(pace)}" if depth and pace is not None else "")
        if depth
        else f"queue 0: nobody may wait for one of the {slots} slots"
    )
    # A refused client comes back after about the wait at the queue's end, and no client loses more than all the time.
    away = count * min(PATIENCE, max(1.0, depth * (pace or 0.0)))
    cost = min(away, len(users) * w.seconds) if users else away
    changes, turn = another_slot(w, more=slots)
    if pace is not None and last is not None and last < BORNE_WAIT:
        what = "Newcomers are refused: the queue of 0 says so" if depth == 0 else "The queue is full, by load"
        why = f"Who came next would have waited about {time_text(last)} for a slot, which is better than a refusal"
        if "slots" in changes or "mode" in changes:
            return Finding("refused", "warn", what, tuple(evidence), turn,
                           f"{why}; best is to let more run at once.", changes, cost)  # fmt: skip
        better = bounded("queue", max(depth + 1, int(BORNE_WAIT / pace) - 1))
        return Finding("refused", "warn", what, tuple(evidence), f"queue {depth} → {better}",
                       f"{why}.", {"queue": better}, cost)  # fmt: skip
    already = f", and the last in it waits about {time_text(last)} already" if last is not None and depth else ""
    return Finding(
        "refused", "warn", "More people come than are served", tuple(evidence), turn,
        f"The queue refuses on purpose what it could not serve in time{already}: a longer one would help nobody.",
        changes, cost,
    )  # fmt: skip


def seconds_per_place(w: Window) -> float | None:
    """How often the queue moves on by one: busy time over requests that ended in it; ``None`` if none did."""
    ended = w.rose("finished") + w.rose("cancelled") - w.rose("gave_up_waiting")
    busy = w.seconds_of(lambda frame: float(occupied(frame) >= 1))
    return busy / ended if ended > 0 and busy > 0 else None


def context(w: Window) -> Finding | None:
    """Prompts refused because they and one token do not fit."""
    count = w.rose("too_long")
    if not count:
        return None
    now, trained, total = w.last.limits.context, w.last.engine.trained_context, w.last.pool.total
    users = sorted({e.user for f in w.frames for e in f.events if e.kind == "too_long" and e.user})
    evidence = [f"{count} {'prompts' if count > 1 else 'prompt'} refused: no room in the context of {now}"]
    if users:
        evidence.append(_named(users).removeprefix(", "))
    most = min((value for value in (trained, total, (now or 0) * 2) if value), default=0)
    changes = {}
    if now and most > now:
        changes, turn = {"context": most}, f"context {now} → {most}"
    elif now and trained and trained > now and total:
        longer = min(trained, 2 * now)
        pool = larger_pool(w, max(longer, total * longer // now))
        if pool is not None:
            changes = {"kv_tokens": pool, "context": longer}
            turn = f"context {now} → {longer}, in a larger pool: kv_tokens {total} → {pool}"
        else:
            turn = "shorter conversations: the memory holds no larger pool"
    else:
        turn = "shorter conversations: the model was trained for no more"
    return Finding(
        "context", "warn", "Prompts do not fit the context", tuple(evidence), turn,
        "A prompt is never cut here, so that no answer forgets its beginning: what does not fit is refused.",
        changes,
    )  # fmt: skip


def cold_start(w: Window) -> Finding | None:
    """Restarts, and a first request after a quiet time that took much longer than the others."""
    times = [seen.slot.ttft for seen in w.requests if not seen.after_quiet and seen.slot.ttft is not None]
    usual = sorted(times)[len(times) // 2] if len(times) >= 3 else None
    cold = [
        seen.slot.ttft
        for seen in w.requests
        if seen.after_quiet and usual and seen.slot.ttft is not None and seen.slot.ttft > max(3 * usual, SLOW_START)
    ]
    evidence = []
    load = w.last.engine.load_seconds or 0.0
    restarts = w.boots - 1 if w.boots > 2 or load >= SLOW_LOAD else 0
    if restarts:
        evidence.append(
            f"restarted {'once' if restarts == 1 else f'{restarts} times'} within {time_text(w.whole_seconds)}"
            + (f", loading took {time_text(load)} each time" if load else "")
        )
    if cold:
        evidence.append(
            f"{len(cold)} first requests after a quiet minute took up to {time_text(max(cold))}, "
            f"others {time_text(usual)}"
        )
    if not evidence:
        return None
    return Finding(
        "cold_start", "warn", "Some requests pay for a cold start", tuple(evidence),
        "keep it running: `slotdeck serve` as a service; for another server, its keep-alive time",
        "After a restart or an unload the model is read again before the first token.",
        cost=restarts * load + sum(ttft - (usual or 0.0) for ttft in cold),
    )  # fmt: skip


def _named(users: list[str]) -> str:
    """``, from laptop, phone and others``; empty when nobody is known."""
    if not users:
        return ""
    return f", from {', '.join(users[:NAMES_TOLD])}" + (" and others" if len(users) > NAMES_TOLD else "")
