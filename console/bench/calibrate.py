"""Measures a calibration: first steps alone in a process of the engine, then steps under load through a real server.

The first shows what the machine can do, the second what users wait for.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import isnan
from statistics import median
from typing import Any

import httpx
import numpy as np

from slotdeck.console.advice.calibration import Calibration, Limit, Wording
from slotdeck.console.advice.step_model import StepModel, fit, not_negative
from slotdeck.console.advice.traffic import Edge, Traffic, TrafficKind
from slotdeck.console.bench.machine import OtherPrograms, describe_machine
from slotdeck.console.client.admin import AdminClient
from slotdeck.console.hosting.engine_process import ENGINE_COMMAND, PROGRESS_PREFIX, EngineExitedError
from slotdeck.console.hosting.private_engine import private_engine
from slotdeck.console.load.client import Endpoint, discover, make_client
from slotdeck.console.load.scripted import measure_wording, play, scripts_of
from slotdeck.engine.configuration import to_environment
from slotdeck.engine.paths import CONFIG_VARIABLE
from slotdeck.engine.settings import SETTINGS, StartSettings
from slotdeck.engine.telemetry.frame import Frame
from slotdeck.engine.telemetry.step_log import StepSample, StepWork, read_samples

Say = Callable[[str], None]
POLL_SECONDS = 1.0


@dataclass(frozen=True)
class CalibrationPhase:
    """One kind of load on the engine that is started for the calibration."""

    kind: TrafficKind
    users: int
    budget: int
    seconds: float


CONTEXT = 1024
PHASES = (
    CalibrationPhase("agent", 1, 64, 10),
    CalibrationPhase("agent", 3, 64, 10),
    CalibrationPhase("documents", 4, 128, 10),
    CalibrationPhase("agent", 8, 256, 12),
    CalibrationPhase("agent", 20, 32, 14),
)
"""One stream, a few, and many; short and long prompts; small and large budgets: enough variety for the fit."""
CALIBRATION_SETTINGS = {"slots": 20, "context": CONTEXT, "queue": 64, "mode": "continuous"}


@dataclass
class ServedSteps:
    """What is measured through the server."""

    samples: list[StepSample] = field(default_factory=list)
    alone: list[StepSample] = field(default_factory=list)
    """The samples of the phase with one user."""
    intakes: dict[str, tuple[int, float]] = field(default_factory=dict)
    """By request id: prompt tokens, and seconds of intake."""
    others: float = 0.0
    """Cores that other programs kept busy during the measurement."""
    wording: Wording | None = None


def calibrate(settings: StartSettings, say: Say) -> Calibration:
    """Measure a calibration, which takes one to two minutes.

    Raises EngineExitedError, RequestFailedError, BusyError and AdminError; StepModelError if too little was measured.
    """
    facts = _alone(settings, say)
    served = ServedSteps()
    with private_engine(settings, say) as (admin, frame):
        asyncio.run(_serve(admin, frame, served, say))
    assert served.wording is not None
    alone = [StepSample(StepWork(*work), 0.0, seconds, 0.0) for work, seconds in facts["steps"]]
    return Calibration(
        measured=time.time(),
        machine=describe_machine(),
        others=served.others,
        **{name: facts[name] for name in Calibration.model_fields if name in facts and name not in _LIMITS},
        memory=Limit(**facts["memory"]),
        arithmetic=Limit(**facts["arithmetic"]),
        overhead=overhead_of(served.alone),
        alone=fit_few(alone),
        served=fit(served.samples),
        edge=edge_of(served.alone, list(served.intakes.values())),
        wording=served.wording,
    )


_LIMITS = ("memory", "arithmetic")


def fit_few(samples: Sequence[StepSample]) -> StepModel:
    """Fit a model to a few steps whose times are medians. They are repeated, because a fit needs many samples."""
    return fit([*samples] * (1 + 50 // max(1, len(samples))))


def _alone(settings: StartSettings, say: Say) -> dict[str, Any]:
    """Run ``python -m slotdeck.engine measure`` and return its JSON. Raises EngineExitedError."""
    wanted = ("model", "weights", "kv_dtype", "device", "threads", "budget")
    values = {name: getattr(settings, name) for name in wanted}
    variables = {setting.variable for setting in SETTINGS.values()}
    environment = {key: value for key, value in os.environ.items() if key not in variables}
    with tempfile.NamedTemporaryFile(prefix="slotdeck-calibration-", suffix=".toml") as nothing:
        environment |= to_environment(values) | {CONFIG_VARIABLE: nothing.name}
        output = _output([*ENGINE_COMMAND, "measure"], environment, say)
    facts: dict[str, Any] = json.loads(output)
    facts["steps"] = [(work, seconds) for work, seconds in facts["steps"] if not isnan(seconds)]
    return facts


def _output(command: Sequence[str], environment: dict[str, str], say: Say) -> str:
    """Run a process and return its output; ``say`` gets its progress. Raises EngineExitedError."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    lines: list[str] = []
    assert process.stderr is not None
    try:
        for line in process.stderr:
            lines.append(line.rstrip())
            if line.startswith(PROGRESS_PREFIX):
                say(line.rstrip().removeprefix(PROGRESS_PREFIX))
        output = process.communicate()[0]
    except BaseException:
        process.kill()
        process.wait()
        raise
    if process.returncode != 0:
        raise EngineExitedError(process.returncode, lines)
    return output


async def _serve(admin: AdminClient, frame: Frame, served: ServedSteps, say: Say) -> None:
    url = frame.engine.url or ""
    most = max(phase.users for phase in PHASES)
    others = OtherPrograms(frame.engine.pid)
    async with make_client(url, most) as client:
        base = await discover(client, url, None, None)
        say("measuring how many tokens the server counts for words")
        served.wording = await measure_wording(client, base)
        cursor = steps_after(admin, 0)[1]
        for number, phase in enumerate(PHASES):
            traffic = Traffic(phase.kind, phase.users, phase.seconds, CONTEXT, seed=number + 1)
            say(f"{phase.users} x {phase.kind}, budget {phase.budget}, {phase.seconds:.0f} s")
            changes = {"changes": {"budget": phase.budget}, "source": "bench"}
            await asyncio.to_thread(admin.call, "PATCH", "/admin/settings", changes)
            found, cursor = await _phase(admin, client, base, traffic=traffic, served=served, cursor=cursor)
            served.samples += found
            if phase.users == 1:
                served.alone += found
        served.others = others.cores()


async def _phase(
    admin: AdminClient, client: httpx.AsyncClient, base: Endpoint, *, traffic: Traffic, served: ServedSteps, cursor: int
) -> tuple[list[StepSample], int]:
    endpoints = await guests(admin, base, traffic.names())
    assert served.wording is not None
    task = asyncio.create_task(
        play(client, endpoints, scripts_of(traffic), seconds=traffic.seconds, wording=served.wording, seed=traffic.seed)
    )
    found: list[StepSample] = []
    while not task.done():
        await asyncio.wait({task}, timeout=POLL_SECONDS)
        frame = await asyncio.to_thread(admin.frame)
        for slot in frame.slots:
            if slot.request_id is not None and slot.prompt_tokens is not None and slot.intake is not None:
                served.intakes[slot.request_id] = (slot.prompt_tokens, slot.intake)
        fresh, cursor = await asyncio.to_thread(steps_after, admin, cursor)
        found += fresh
    await task
    return found, cursor


async def guests(admin: AdminClient, base: Endpoint, names: Sequence[str]) -> list[Endpoint]:
    """The endpoint with a separate guest key for each of these users."""
    minted = await asyncio.to_thread(admin.call, "POST", "/admin/guest-keys", {"labels": list(names)})
    return [replace(base, api_key=minted["keys"][name]) for name in names]


def steps_after(admin: AdminClient, cursor: int) -> tuple[list[StepSample], int]:
    """The engine's measured steps after number ``cursor``, if it still has them, and the new cursor."""
    answer = admin.call("GET", f"/admin/steps?after={cursor}")
    return read_samples(answer["steps"]), int(answer["cursor"])


def overhead_of(samples: Sequence[StepSample]) -> float:
    """The part of a served decode step of one stream in which the model computes nothing, 0 to 1."""
    parts = [
        sample.between / (sample.seconds + sample.between)
        for sample in samples
        if sample.between is not None and sample.work.decodes == 1 and not sample.work.prefill_tokens
    ]
    return median(parts) if parts else 0.0


def edge_of(samples: Sequence[StepSample], intakes: Sequence[tuple[int, float]]) -> Edge:
    """Derive the request overhead.

    ``samples`` are the steps of one user who never pauses. ``intakes`` are prompt tokens with their seconds of intake.
    """
    if not intakes:
        return Edge()
    lengths = np.array([(1.0, tokens) for tokens, _ in intakes])
    base, per_token = map(float, not_negative(lengths, np.array([seconds for _, seconds in intakes])))
    pauses = [
        later.ended - later.seconds - before.ended for before, later in pairwise(samples) if later.between is None
    ]
    typical = median(seconds for _, seconds in intakes)
    turnaround = max(0.0, median(pauses) - typical) if pauses else Edge().turnaround
    return Edge(intake=base, intake_token=per_token, turnaround=turnaround)
