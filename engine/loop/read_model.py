"""What the engine tells about itself: health, frames, estimates, metrics. Nothing here changes anything."""

from __future__ import annotations

import threading

from slotdeck.engine.loop.live_changes import LiveChanges
from slotdeck.engine.loop.state import LoopState
from slotdeck.engine.telemetry.frame import Frame, Health
from slotdeck.engine.telemetry.frame_builder import build_frame, estimate_waits, queue_load, take_snapshot
from slotdeck.engine.telemetry.host import HostProbe


class ReadModel:
    """Any thread may call any method. The scheduler's lock is held only while its state is copied.

    ``token_bytes``: KV of one token, as bytes of K and V and bytes of their scales. ``thread`` is the loop's.
    """

    def __init__(
        self, state: LoopState, live: LiveChanges, thread: threading.Thread, boot_id: str, token_bytes: tuple[int, int]
    ) -> None:
        self._state, self._live, self._thread = state, live, thread
        self._boot_id, self._token_bytes = boot_id, token_bytes
        self._host = HostProbe(state.info.device or "cpu")

    def health(self) -> tuple[Health, str | None]:
        """How the engine is, with the reason."""
        state = self._state
        if state.fault is not None:
            return "fault", state.fault
        if (reason := state.wedged()) is not None:
            return "fault", reason
        if state.draining:
            return "draining", "the engine is shutting down; running requests are served to their end"
        if not self._thread.is_alive():
            return ("fault", "the engine thread has ended") if self._thread.ident else ("starting", None)
        return "ok", None

    def frame(self, sequence: int, event_cursor: int) -> tuple[Frame, int]:
        """The state of the engine now, with the events after ``event_cursor``; and the new cursor."""
        state = self._state
        now = state.clock()
        health, reason = self.health()
        pace = state.telemetry.pace()
        with state.lock:
            snapshot = take_snapshot(state.scheduler, pace, self._token_bytes, now)
            limits = self._live.limits()
        host = self._host.sample(now)
        state.telemetry.requests.on_host(host)
        return build_frame(
            snapshot, state.telemetry, event_cursor, boot_id=self._boot_id, sequence=sequence, engine=state.info,
            limits=limits, host=host, health=health, health_reason=reason,
        )  # fmt: skip

    def estimated_wait(self) -> float | None:
        """Seconds until a request that came now would likely get a slot; ``None`` before anything has finished."""
        pace = self._state.telemetry.pace()
        with self._state.lock:
            load = queue_load(self._state.scheduler)
        # The newcomer stands behind all who wait, however many of them a frame shows.
        return estimate_waits(load, load.waiting + 1, pace)[-1]
