"""Builds a Frame of an engine or a simulation. ``take_snapshot`` needs the engine's lock, which its caller holds."""

from __future__ import annotations

from dataclasses import dataclass

from slotdeck.engine.core.request import Request, State
from slotdeck.engine.core.scheduler import Scheduler
from slotdeck.engine.settings import BLOCK_SIZE
from slotdeck.engine.telemetry.estimate import Pace, Running, wait_estimates
from slotdeck.engine.telemetry.frame import (
    EngineInfo,
    Frame,
    Health,
    HostInfo,
    LimitInfo,
    PoolInfo,
    SlotInfo,
    SlotState,
    WaitingInfo,
)
from slotdeck.engine.telemetry.telemetry import Telemetry
from slotdeck.engine.telemetry.windows import percentile

GAPS_SHOWN = 24
WAITING_SHOWN = 32
MAX_GAPS = 4096
"""A request's own p95 is that of its newest gaps, so that a long answer does not slow down every frame."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The part of a frame that comes from the scheduler. It is copied under the lock in well under a millisecond."""

    pool: PoolInfo
    slots: tuple[SlotInfo, ...]
    gaps: dict[str, tuple[list[float], int]]
    """The list of gaps of each admitted request, and how many it had then. The loop goes on appending to it."""
    waiting: tuple[WaitingInfo, ...]
    running: int
    waiting_count: int


def take_snapshot(scheduler: Scheduler, pace: Pace, token_bytes: tuple[int, int], now: float) -> Snapshot:
    """Copy the scheduler's state at ``now`` (monotonic seconds). ``token_bytes``: K and V, and scales."""
    pool, slots_in_force = scheduler.pool, scheduler.settings.slots
    held = {request.slot: request for request in scheduler.admitted()}
    waits = estimates(scheduler, pace)
    numbers = sorted(set(range(slots_in_force)) | {slot for slot in held if slot is not None})
    return Snapshot(
        pool=PoolInfo(
            total=pool.num_tokens,
            live=pool.num_used * BLOCK_SIZE,
            cached=pool.num_evictable * BLOCK_SIZE,
            free=pool.num_free * BLOCK_SIZE,
            block_size=BLOCK_SIZE,
            bytes_per_token=token_bytes[0],
            scale_bytes_per_token=token_bytes[1],
            swapped=scheduler.swapped_bytes,
        ),
        slots=tuple(_slot(slot, held[slot], now) if slot in held else SlotInfo(slot=slot) for slot in numbers),
        gaps={request.id: (request.gaps, len(request.gaps)) for request in held.values()},
        waiting=tuple(
            WaitingInfo(
                request_id=request.id,
                user=request.user,
                prompt_tokens=request.num_prompt_tokens,
                waited=now - request.timeline.queued,
                estimate=estimate,
            )
            for request, estimate in zip(scheduler.waiting, waits, strict=False)
        ),
        running=len(scheduler.running),
        waiting_count=len(scheduler.waiting),
    )


@dataclass(frozen=True, slots=True)
class QueueLoad:
    """What an estimate of waits needs of the scheduler."""

    running: tuple[Running, ...]
    """Requests that hold a slot and have not ended."""
    waiting: int
    slots: int
    whole_batches: bool
    waits_for_slots: bool
    """Whether the queue waits for slots. With a slot free, or beside a preempted request, it waits for room in the
    pool, and the pace of requests does not tell when there will be some."""


def queue_load(scheduler: Scheduler) -> QueueLoad:
    """Copied under the engine's lock."""
    slots = scheduler.policy.slots(scheduler.settings.slots)
    whole_batches = scheduler.policy.holds_slots
    slot_is_free = len(scheduler.admitted()) < slots and not whole_batches
    return QueueLoad(
        running=tuple(
            Running(
                prefill_left=request.num_tokens - request.num_computed_tokens,
                output=request.num_output_tokens,
                max_output=request.sampling.max_tokens,
            )
            for request in (*scheduler.running, *scheduler.preempted)
        ),
        waiting=len(scheduler.waiting),
        slots=slots,
        whole_batches=whole_batches,
        waits_for_slots=not scheduler.preempted and not slot_is_free,
    )


def estimate_waits(load: QueueLoad, count: int, pace: Pace) -> list[float | None]:
    """Seconds until each of the first ``count`` waiting requests likely gets a slot, in queue order.

    ``None`` where that is unknown; see :func:`slotdeck.engine.telemetry.estimate.wait_estimates`.
    """
    if not load.waits_for_slots:
        return [None] * count
    return wait_estimates(load.running, count, load.slots, pace, whole_batches=load.whole_batches)


def estimates(scheduler: Scheduler, pace: Pace) -> list[float | None]:
    """Of the waiting requests that a frame shows; see :func:`estimate_waits`."""
    load = queue_load(scheduler)
    return estimate_waits(load, min(load.waiting, WAITING_SHOWN), pace)


def build_frame(
    seen: Snapshot, telemetry: Telemetry, event_cursor: int, *, boot_id: str, sequence: int, engine: EngineInfo,
    limits: LimitInfo, host: HostInfo, health: Health = "ok", health_reason: str | None = None,
) -> tuple[Frame, int]:  # fmt: skip
    """A frame from a snapshot and the telemetry, with the events after ``event_cursor``, and the new cursor."""
    events, cursor = telemetry.events_since(event_cursor)
    minute, ten_minutes = telemetry.windows()
    generated, prompt = telemetry.rates()
    notes = telemetry.notes()
    frame = Frame(
        boot_id=boot_id,
        sequence=sequence,
        time=telemetry.wall(),
        uptime=telemetry.uptime,
        health=health,
        health_reason=health_reason,
        engine=engine.model_copy(update={"notes": (*engine.notes, *notes)}) if notes else engine,
        limits=limits,
        pool=seen.pool,
        slots=_with_percentiles(seen),
        running=seen.running,
        waiting_count=seen.waiting_count,
        waiting=seen.waiting,
        counters=telemetry.counters(),
        minute=minute,
        ten_minutes=ten_minutes,
        generated_per_second=generated,
        prompt_per_second=prompt,
        recent_ttft=tuple(telemetry.recent_ttft),
        host=host,
        events=events,
    )
    return frame, cursor


def _with_percentiles(seen: Snapshot) -> tuple[SlotInfo, ...]:
    """The slots with each request's own ITL p95 filled in."""

    def p95(request_id: str) -> float | None:
        gaps, count = seen.gaps[request_id]
        return percentile(gaps[max(0, count - MAX_GAPS) : count], 95)

    return tuple(
        slot.model_copy(update={"itl_p95": p95(slot.request_id)}) if slot.request_id else slot for slot in seen.slots
    )


def _slot(slot: int, request: Request, now: float) -> SlotInfo:
    timeline = request.timeline
    state: SlotState = "decode" if request.decoding else "prefill"
    stalled = request.stalled
    if request.state.ended:
        state = "held"
    elif request.state is State.PREEMPTED:
        state = "swapped" if request.swapped_tokens else "preempted"
        stalled += now - (request.preempted_at or now)
    return SlotInfo(
        slot=slot,
        state=state,
        request_id=request.id,
        user=request.user,
        prompt_tokens=request.num_prompt_tokens,
        computed_tokens=request.num_computed_tokens,
        output_tokens=request.num_output_tokens,
        max_tokens=request.sampling.max_tokens,
        age=now - timeline.arrival,
        ttft=timeline.ttft,
        intake=timeline.intake,
        queue_wait=timeline.queue_wait,
        prefill=timeline.prefill,
        gaps=tuple(request.gaps[-GAPS_SHOWN:]),
        preemptions=request.num_preemptions,
        recomputed_tokens=request.recomputed_tokens,
        swapped_bytes=request.swapped_bytes,
        cached_tokens=request.cached_tokens,
        stalled=stalled,
        blocks=len(request.block_ids),
    )
