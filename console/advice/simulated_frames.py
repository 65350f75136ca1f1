"""Turns a simulation into what an engine would have reported: the same counters, events and frames, once a second."""

from __future__ import annotations

from slotdeck.console.advice.simulator import Simulator, Watcher
from slotdeck.engine.core.events import Event
from slotdeck.engine.core.step import SchedulerOutput
from slotdeck.engine.settings import LiveSettings
from slotdeck.engine.telemetry.frame import EngineInfo, Frame, HostInfo, LimitInfo
from slotdeck.engine.telemetry.frame_builder import build_frame, take_snapshot
from slotdeck.engine.telemetry.telemetry import Telemetry

FRAME_SECONDS = 1.0


class FrameMaker(Watcher):
    """Watches one simulation and collects its frames.

    ``start`` is the wall clock at its beginning. ``token_bytes`` are the bytes of one token: K and V, and scales.
    """

    def __init__(self, info: EngineInfo, start: float, token_bytes: tuple[int, int] = (0, 0)) -> None:
        self.frames: list[Frame] = []
        self._info = info.model_copy(update={"name": "SIMULATED", "url": None, "pid": None})
        self._token_bytes = token_bytes
        self._now = 0.0
        self._next = 0.0
        self._cursor = 0
        self._telemetry = Telemetry(lambda: self._now, lambda: start + self._now)
        self._simulator: Simulator | None = None

    def watch(self, simulator: Simulator) -> None:
        """Called by the simulator whose scheduler the frames show."""
        self._simulator = simulator
        self._frame(0.0)

    def received(self, now: float) -> None:
        self._now = now
        self._telemetry.count_received()

    def rejected(self, user: str, reason: str, now: float) -> None:
        self._now = now
        self._telemetry.count_rejected(user, reason)

    def too_long(self, user: str, reason: str, now: float) -> None:
        self._now = now
        self._telemetry.count_too_long(user, reason)

    def happened(self, events: list[Event], now: float) -> None:
        self._now = now
        self._telemetry.observe(events)

    def stepped(self, plan: SchedulerOutput, seconds: float, now: float, generated: int) -> None:
        self._now = now
        self._telemetry.observe_step(plan, seconds, now, generated)

    def rest(self, until: float) -> None:
        """Make the frames up to ``until``; nothing more happens before that."""
        while self._next <= until:
            self._frame(self._next)

    def end(self) -> None:
        """Make a last frame, which shows that everything was answered."""
        self._frame(max(self._now, self._next))

    def _frame(self, now: float) -> None:
        assert self._simulator is not None
        self._now = now
        self._next = now + FRAME_SECONDS
        scheduler, telemetry = self._simulator.scheduler, self._telemetry
        seen = take_snapshot(scheduler, telemetry.pace(), self._token_bytes, now)
        frame, self._cursor = build_frame(
            seen, telemetry, self._cursor, boot_id="simulated", sequence=len(self.frames) + 1, engine=self._info,
            limits=_limits(scheduler.settings, scheduler.budget_in_force), host=HostInfo(),
        )  # fmt: skip
        self.frames.append(frame)


def _limits(settings: LiveSettings, budget_in_force: int) -> LimitInfo:
    return LimitInfo(**settings.model_dump(), budget_in_force=budget_in_force)
