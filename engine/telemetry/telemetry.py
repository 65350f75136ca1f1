"""Counters, windows and the event log. The loop adds the scheduler's events, the server adds arrivals and refusals."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

import numpy as np

from slotdeck.engine.core.events import Event, EventKind, PreemptionCause
from slotdeck.engine.core.step import SchedulerOutput
from slotdeck.engine.telemetry.estimate import Pace
from slotdeck.engine.telemetry.frame import CounterInfo, FrameEvent, FrameEventKind, WindowInfo
from slotdeck.engine.telemetry.metrics import Metrics
from slotdeck.engine.telemetry.refused import RefusedClients
from slotdeck.engine.telemetry.requests.log import RequestLog
from slotdeck.engine.telemetry.step_log import StepLog
from slotdeck.engine.telemetry.windows import Samples, joined, percentile, percentiles

log = logging.getLogger("slotdeck.engine")

MINUTE = 60.0
TEN_MINUTES = 600.0
RATE_SECONDS = 5.0
EVENTS_KEPT = 1000
_ENDS = (EventKind.FINISHED, EventKind.CANCELLED, EventKind.FAILED, EventKind.REJECTED)

_CAUSES: dict[PreemptionCause, str] = {
    "pool_full": "the KV pool is full",
    "pool_shrunk": "the KV pool was made smaller",
    "step_failed": "a step failed and its KV is not safe",
}


def _tokens(number: int) -> str:
    return "1 token" if number == 1 else f"{number} tokens"


class Telemetry:
    """What the engine counted and measured. Any thread may call any method.

    ``clock`` is the engine's monotonic clock, ``wall`` the wall clock for display; both in seconds.
    """

    def __init__(self, clock: Callable[[], float], wall: Callable[[], float]) -> None:
        self._clock, self.wall = clock, wall
        self._lock = threading.Lock()
        self._counts: dict[str, Any] = dict.fromkeys(CounterInfo.model_fields, 0)
        self._events: deque[FrameEvent] = deque(maxlen=EVENTS_KEPT)
        self.event_cursor = 0
        """Number of events ever logged: the cursor of a reader that has seen them all."""
        self._ttft = Samples(TEN_MINUTES)
        self._itl = Samples(TEN_MINUTES)
        self._wait = Samples(TEN_MINUTES)
        self._generated = Samples(TEN_MINUTES)
        self._prompt = Samples(TEN_MINUTES)
        self._refused = RefusedClients(clock)
        self._notes: dict[str, str] = {}
        self._windows: tuple[WindowInfo, WindowInfo] | None = None
        self._windows_time = 0.0
        self._started = clock()
        self._lengths: deque[tuple[int, int]] = deque(maxlen=20)
        self._prefills: deque[tuple[int, float]] = deque(maxlen=64)
        self.recent_ttft: deque[float] = deque(maxlen=20)
        self.metrics = Metrics()
        self.requests = RequestLog(clock, wall)
        self.steps = StepLog()
        self.on_ended: Callable[[Event, float], None] | None = None
        """Called with each request's last event and the wall clock, in the thread that ended it. Must not block."""

    # -- from the server -----------------------------------------------------------------------------------

    def count_received(self) -> None:
        """A generation request arrived. Exactly one of the outcomes below follows."""
        self._count("received")

    def count_invalid(self, user: str, reason: str) -> None:
        """A request was refused as the client's fault (4xx). ``reason``, without client text, is logged later."""
        self._count("invalid")
        with self._lock:
            self._refused.add(user, reason)

    def count_too_long(self, user: str, reason: str) -> None:
        """A request was refused as invalid because its prompt leaves no room in the context."""
        self._count("invalid")
        self._count("too_long")
        self.log("too_long", f"{user} refused: {reason}", user=user)

    def count_rejected(self, user: str, reason: str, count: int = 1) -> None:
        """A request, or ``count`` answers to one prompt, was refused with 503."""
        self._count("rejected", count)
        self.log(EventKind.REJECTED, f"{user} refused: {reason}", user=user)

    def count_cancelled_before_queue(self) -> None:
        """A client left while its prompt was still being tokenised."""
        self._count("cancelled")

    def count_failed_before_queue(self) -> None:
        """A fault of Slotdeck ended a request before it reached the scheduler."""
        self._count("failed")

    def count_pool_resize(self) -> None:
        self._count("pool_resizes")

    def _count(self, name: str, by: float = 1) -> None:
        with self._lock:
            self._counts[name] += by

    def log(self, kind: FrameEventKind, text: str, **fields: Any) -> None:
        """Append one event. Of what clients send, ``text`` holds only the user's label."""
        with self._lock:
            self._events.append(FrameEvent(time=self.wall(), kind=kind, text=text, **fields))
            self.event_cursor += 1
        if kind == "setting_changed":
            self.requests.on_change(text)

    def set_note(self, topic: str, text: str | None) -> None:
        """Show ``text`` among the engine's notes until another one of the same ``topic`` replaces it, or ``None``."""
        with self._lock:
            kept = {name: note for name, note in self._notes.items() if name != topic}
            self._notes = kept if text is None else kept | {topic: text}

    # -- from the loop --------------------------------------------------------------------------------------

    def observe_step(self, plan: SchedulerOutput, seconds: float, now: float, generated: int) -> None:
        """Record one committed step, which ended at ``now``, took ``seconds`` and generated so many tokens."""
        prompt = plan.num_prefill_tokens
        requests = (row.request for row in plan.rows)
        gaps = [request.gaps[-1] for request in requests if request.gaps and request.timeline.last_token == now]
        with self._lock:
            self._counts["steps"] += 1
            self._counts["prompt_tokens"] += prompt
            self._counts["generated_tokens"] += generated
            if prompt:
                self._prompt.append(now, prompt)
                self._prefills.append((prompt, seconds))
            if generated:
                self._generated.append(now, generated)
            for gap in gaps:
                self._itl.append(now, gap)
        for gap in gaps:
            self.metrics.itl.observe(gap)
        self.metrics.step.observe(seconds)
        self.requests.on_step(plan, seconds, now)
        self.steps.on_step(plan, seconds, now)

    def observe(self, events: Iterable[Event]) -> None:
        """Count and log the scheduler's events."""
        for event in events:
            self._OBSERVERS[event.kind](self, event)
            self.requests.on_event(event)
            if self.on_ended is not None and event.kind in _ENDS:
                self.on_ended(event, self.wall())

    def _log(self, event: Event, text: str) -> None:
        request = event.request
        self.log(event.kind, text, request_id=request.id, user=request.user, slot=request.slot)

    @staticmethod
    def _who(event: Event) -> str:
        return f"{event.request.user} (slot {event.request.slot})"

    def _admitted(self, event: Event) -> None:
        wait = event.request.timeline.queue_wait or 0.0
        with self._lock:
            self._wait.append(event.time, wait)
        self.metrics.queue_wait.observe(wait)
        self._count("cached_tokens", event.request.cached_tokens)
        hit = event.request.cached_tokens
        cached = f", {_tokens(hit)} from the prefix cache" if hit else ""
        slot = event.request.slot
        self._log(event, f"{event.request.user} admitted to slot {slot} after {wait:.2f} s in the queue{cached}")

    def _first_token(self, event: Event) -> None:
        timeline = event.request.timeline
        assert timeline.ttft is not None
        assert timeline.prefill is not None
        with self._lock:
            self._ttft.append(event.time, timeline.ttft)
            self.recent_ttft.append(timeline.ttft)
        self.metrics.ttft.observe(timeline.ttft)
        self.metrics.prefill.observe(timeline.prefill)
        self.metrics.prompt_tokens.inc(event.request.num_prompt_tokens)
        self._log(event, f"{event.request.user} first token after {timeline.ttft:.2f} s")

    def _preempted(self, event: Event) -> None:
        self._count("preemptions")
        self._count("kv_swap_bytes", event.swapped_bytes)
        times = event.request.num_preemptions
        became = "copied to host memory" if event.swapped_bytes else "thrown away"
        text = f"{self._who(event)} preempted, {_CAUSES[event.cause]}: {_tokens(event.tokens)} {became}"
        self._log(event, text + (f", {times} times now" if times > 1 else ""))
        log.info("request %s: %s", event.request.id, text)

    def _resumed(self, event: Event) -> None:
        self._count("recomputed_tokens", event.tokens)
        self._count("kv_swap_bytes", event.swapped_bytes)
        self._count("stalled_seconds", event.stalled)
        work = "its KV copied back" if event.swapped_bytes else f"{_tokens(event.tokens)} to compute again"
        self._log(event, f"{self._who(event)} resumed after {event.stalled:.2f} s: {work}")

    def _finished(self, event: Event) -> None:
        request = event.request
        self._count("finished")
        with self._lock:
            self._lengths.append((request.num_prompt_tokens, request.num_output_tokens))
        reason = request.finish_reason.value if request.finish_reason else "stop"
        seconds = event.time - request.timeline.arrival
        self.metrics.finished(reason)
        self._log(event, f"{request.user} finished ({reason}): {_tokens(request.num_output_tokens)} in {seconds:.1f} s")

    def _cancelled(self, event: Event) -> None:
        request = event.request
        self._count("cancelled")
        if request.timeline.scheduled is None:
            self._count("gave_up_waiting")
            waited = event.time - request.timeline.queued
            self._log(event, f"{request.user} gave up waiting after {waited:.1f} s")
        else:
            self._log(event, f"{request.user} cancelled after {_tokens(request.num_output_tokens)}")

    def _failed(self, event: Event) -> None:
        self._count("failed")
        self._log(event, f"{event.request.user} failed: {event.request.failure}")

    def _rejected(self, event: Event) -> None:
        self._count("rejected")
        self._log(event, f"{event.request.user} refused: {event.request.failure}")

    _OBSERVERS: dict[EventKind, Callable[[Telemetry, Event], None]] = {  # noqa: RUF012 - a constant table
        EventKind.ADMITTED: _admitted,
        EventKind.FIRST_TOKEN: _first_token,
        EventKind.PREEMPTED: _preempted,
        EventKind.RESUMED: _resumed,
        EventKind.FINISHED: _finished,
        EventKind.CANCELLED: _cancelled,
        EventKind.FAILED: _failed,
        EventKind.REJECTED: _rejected,
    }

    # -- to frames and metrics ------------------------------------------------------------------------------

    @property
    def uptime(self) -> float:
        """Seconds since the engine started."""
        return self._clock() - self._started

    def counters(self) -> CounterInfo:
        with self._lock:
            counts = self._counts.copy()
        return CounterInfo(**counts)

    def notes(self) -> tuple[str, ...]:
        """The notes that are set now, the oldest first."""
        return tuple(self._notes.values())

    def events_since(self, cursor: int) -> tuple[tuple[FrameEvent, ...], int]:
        """The events logged after ``cursor``, of the last 1000, and the new cursor."""
        with self._lock:
            refused = self._refused.due()
        for user, text in refused:
            self.log("invalid", text, user=user)
        with self._lock:
            count = max(0, min(self.event_cursor - cursor, len(self._events)))
            newest = tuple(islice(reversed(self._events), count))
            return newest[::-1], self.event_cursor

    def pace(self) -> Pace:
        """Recent measurements from which waits are estimated."""
        minute, ten_minutes = self.windows()
        with self._lock:
            ended, lengths = len(self._lengths), list(self._lengths)
            prefills = list(self._prefills)
        seconds = sum(spent for _, spent in prefills)
        return Pace(
            output=sum(output for _, output in lengths) / ended if ended else None,
            prompt=sum(prompt for prompt, _ in lengths) / ended if ended else None,
            gap=minute.itl_p50 if minute.itl_p50 is not None else ten_minutes.itl_p50,
            prompt_per_second=sum(tokens for tokens, _ in prefills) / seconds if seconds else None,
        )

    def rates(self) -> tuple[float, float]:
        """Generated and prompt tokens per second over the last 5 s (or since the start, if that is shorter)."""
        now = self._clock()
        seconds = max(min(RATE_SECONDS, now - self._started), 0.5)
        with self._lock:
            generated, prompt = (samples.since(now - RATE_SECONDS) for samples in (self._generated, self._prompt))
        return float(joined(generated).sum() / seconds), float(joined(prompt).sum() / seconds)

    def windows(self) -> tuple[WindowInfo, WindowInfo]:
        """The last 60 s and 10 min, computed at most once a second."""
        now = self._clock()
        with self._lock:
            if self._windows is not None and now - self._windows_time < 1.0:
                return self._windows
            minute, ten_minutes = self._since(now - MINUTE), self._since(now - TEN_MINUTES)
        # Copying and sorting millions of gaps takes long. The loop must not wait for the lock meanwhile.
        windows = self._window(MINUTE, now, minute), self._window(TEN_MINUTES, now, ten_minutes)
        with self._lock:
            self._windows, self._windows_time = windows, now
        return windows

    def _since(self, time: float) -> list[list[np.ndarray]]:
        measured = (self._ttft, self._itl, self._wait, self._generated, self._prompt)
        return [samples.since(time) for samples in measured]

    def _window(self, seconds: float, now: float, samples: list[list[np.ndarray]]) -> WindowInfo:
        ttft, itl, wait, generated, prompt = map(joined, samples)
        elapsed = max(min(seconds, now - self._started), 0.5)
        ttft_p50, ttft_p95 = percentiles(ttft, 50, 95)
        itl_p50, itl_p95, itl_max = percentiles(itl, 50, 95, 100)
        return WindowInfo(
            seconds=seconds,
            ttft_p50=ttft_p50,
            ttft_p95=ttft_p95,
            ttft_count=len(ttft),
            itl_p50=itl_p50,
            itl_p95=itl_p95,
            itl_max=itl_max,
            itl_count=len(itl),
            wait_p95=percentile(wait, 95),
            wait_count=len(wait),
            generated_per_second=float(generated.sum() / elapsed),
            prompt_per_second=float(prompt.sum() / elapsed),
        )
