"""Verifies a prediction: serves the same scripted traffic on a private engine and returns what it measured."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from slotdeck.console.advice.calibration import Wording
from slotdeck.console.advice.traffic import Traffic
from slotdeck.console.bench.calibrate import guests, steps_after
from slotdeck.console.bench.machine import OtherPrograms
from slotdeck.console.hosting.private_engine import private_engine
from slotdeck.console.load.client import discover, make_client
from slotdeck.console.load.scripted import play, scripts_of
from slotdeck.engine.settings import StartSettings
from slotdeck.engine.telemetry.step_log import StepSample


@dataclass(frozen=True)
class MeasuredService:
    """What the engine measured over the whole run. Times are in seconds, ``None`` without samples."""

    ttft_p50: float | None
    ttft_p95: float | None
    itl_p50: float | None
    itl_p95: float | None
    tokens_per_second: float | None
    requests: int
    rejected: int
    preemptions: int
    cached_tokens: int
    seconds: float
    others: float = 0.0
    """Cores that other programs kept busy during the run."""
    samples: tuple[StepSample, ...] = ()
    """The last steps of the run with their measured times."""


MAX_SECONDS = 540.0
"""A longer run would exceed the ten minutes of the engine's percentiles."""


def verify(settings: StartSettings, traffic: Traffic, wording: Wording, say: Callable[[str], None]) -> MeasuredService:
    """Serve ``traffic`` once with ``settings``.

    Raises EngineExitedError, RequestFailedError, BusyError and AdminError.
    """
    with private_engine(settings, say) as (admin, frame):

        async def run() -> MeasuredService:
            url = frame.engine.url or ""
            others = OtherPrograms(frame.engine.pid)
            async with make_client(url, traffic.users) as client:
                base = await discover(client, url, None, None)
                endpoints = await guests(admin, base, traffic.names())
                say(f"{traffic.users} x {traffic.kind} for {traffic.seconds:.0f} s")
                played = await play(
                    client,
                    endpoints,
                    scripts_of(traffic),
                    seconds=traffic.seconds,
                    wording=wording,
                    seed=traffic.seed,
                )
            last = await asyncio.to_thread(admin.frame)
            generated, seconds = last.counters.generated_tokens or 0, played.ended - played.started
            window = last.ten_minutes
            return MeasuredService(
                ttft_p50=window.ttft_p50,
                ttft_p95=window.ttft_p95,
                itl_p50=window.itl_p50,
                itl_p95=window.itl_p95,
                tokens_per_second=generated / seconds if seconds > 0 else None,
                requests=last.counters.finished or 0,
                rejected=last.counters.rejected or 0,
                preemptions=last.counters.preemptions or 0,
                cached_tokens=last.counters.cached_tokens or 0,
                seconds=seconds,
                others=others.cores(),
                samples=tuple((await asyncio.to_thread(steps_after, admin, 0))[0]),
            )

        return asyncio.run(run())
