"""`slotdeck plan --kind` and `--from`: tries hundreds of settings on simulated traffic, and the best on an engine."""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from slotdeck.console.advice.calibration import Calibration, CalibrationError
from slotdeck.console.advice.recorded import simulate, users_of
from slotdeck.console.advice.running import settings_of
from slotdeck.console.advice.search import BUDGETS, Goals, SearchResult, Trial, search
from slotdeck.console.advice.simulated_frames import FrameMaker
from slotdeck.console.advice.simulation_result import SimulationResult
from slotdeck.console.advice.simulator import Simulator
from slotdeck.console.advice.step_model import StepTimes
from slotdeck.console.advice.traffic import Traffic, TrafficKind, User, describe
from slotdeck.console.bench.calibration_file import find_calibration, newest_calibration
from slotdeck.console.cli.exits import FAILED, NOTHING_RECORDED, fail, say
from slotdeck.console.cli.moments import time_range
from slotdeck.console.client.admin import AdminClient, AdminError
from slotdeck.engine.settings import BLOCK_SIZE, LiveSettings, StartSettings
from slotdeck.engine.telemetry.frame import EngineInfo, Frame
from slotdeck.engine.telemetry.history.schema import RequestRecord

if TYPE_CHECKING:
    from slotdeck.console.bench.verify import MeasuredService

SECONDS: dict[TrafficKind, float] = {"chat": 300.0, "agent": 90.0, "documents": 120.0}
"""Simulated time by kind: long enough for every user to have some turns."""
POOL_SHARE = 0.8
"""Part of the free memory that the largest pool may take."""
NICE = 5
"""Niceness of the search, so that it yields to a serving engine."""
SLOTS_PER_USER = 1.25
"""The most slots that are tried, for each user,"""
MIN_MAX_SLOTS = 4
"""but at least this many."""
ENGINE_FACTS = ("model", "weights", "kv_dtype", "device", "threads", "kernels", "weight_bytes")
"""Facts about the engine that simulated frames take from the calibration."""


@dataclass(frozen=True)
class Job:
    """Everything that a worker needs. Either ``traffic`` or ``records`` is given."""

    calibration: Calibration
    base: LiveSettings
    goals: Goals
    traffic: Traffic | None
    records: tuple[RequestRecord, ...]
    context: int
    max_slots: int
    max_pool: int
    modes: tuple[str, ...]
    seed: int

    def users(self) -> list[User]:
        """New users for each run, because a script can only be read once."""
        if self.traffic is None:
            return users_of(self.records)
        traffic = self.traffic
        return [User(name, traffic.script(i), traffic.seconds) for i, name in enumerate(traffic.names())]

    def run(self, settings: LiveSettings) -> SimulationResult:
        return simulate(self.users(), settings, self.calibration, self.seed)


def read_speed(admin: AdminClient) -> tuple[Calibration, Frame | None]:
    """The calibration of the running engine, or else the newest. The command ends if there is none."""
    try:
        frame = admin.running()
    except AdminError as error:
        say(f"{error}; planning without it")
        frame = None
    try:
        return (newest_calibration() if frame is None else find_calibration(frame.engine)), frame
    except CalibrationError as error:
        fail(str(error), FAILED)


def max_pool(calibration: Calibration, frame: Frame | None) -> int:
    """Tokens that the pool may take: what it has now, and most of the free memory."""
    import psutil

    held = (frame.pool.total or 0) if frame is not None else 0
    if calibration.device != "cpu":
        return held or 1 << 20
    return held + int(POOL_SHARE * psutil.virtual_memory().available / max(1, calibration.kv_bytes_per_token))


def run_search(job: Job, budgets: Sequence[int] = BUDGETS) -> SearchResult:
    """Search each budget in its own process, as many at once as there are cores."""
    found = SearchResult(job.goals)
    workers = min(len(budgets), len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1)
    started = time.monotonic()
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), initializer=_be_nice) as pool:
        waiting = {pool.submit(_search_budget, job, budget): budget for budget in budgets}
        for done in as_completed(waiting):
            part = done.result()
            found.tried += part.tried
            found.simulated += part.simulated
            found.refusing += part.refusing
            found.requests += part.requests
            say(
                f"budget {waiting[done]}: {len(part.tried) + part.refusing} settings, {part.simulated} runs, "
                f"{time.monotonic() - started:.0f} s"
            )
    found.tried.sort(key=lambda tried: tried.settings.budget)
    return found


def _be_nice() -> None:
    os.nice(NICE)


def _search_budget(job: Job, budget: int) -> SearchResult:
    return search(
        job.run,
        job.base,
        goals=job.goals,
        context=job.context,
        max_slots=job.max_slots,
        max_pool=job.max_pool,
        budgets=(budget,),
        modes=job.modes,
    )


def context_of(records: Sequence[RequestRecord]) -> int:
    """Tokens that the longest recorded request needs, in whole blocks."""
    longest = max(((record.prompt_tokens or 0) + (record.output_tokens or 0) for record in records), default=0)
    return max(64, -(-longest // BLOCK_SIZE) * BLOCK_SIZE)


def write_recording(job: Job, settings: LiveSettings, path: Path) -> int:
    """Simulate once and write the frames for `slotdeck replay`. Returns their number. Raises OSError."""
    from slotdeck.console.sources.recording import write_frames

    calibration = job.calibration
    measured = time.strftime("%Y-%m-%d %H:%M", time.localtime(calibration.measured))
    info = EngineInfo(
        **{name: getattr(calibration, name) for name in ENGINE_FACTS},
        notes=(f"simulated with speeds measured on {measured}",),
    )
    maker = FrameMaker(info, time.time(), (calibration.kv_bytes_per_token, 0))
    Simulator(settings, StepTimes(calibration.served, job.seed), calibration.edge, watcher=maker).run(job.users())
    return write_frames(path, maker.frames)


def verify_one(job: Job, tried: Trial, start: StartSettings, times: int) -> list[MeasuredService]:
    """Serve the same traffic on a private engine, ``times`` times. A failure ends the command."""
    from slotdeck.console.bench.verify import verify
    from slotdeck.console.hosting.engine_process import EngineExitedError
    from slotdeck.console.load.client import RequestFailedError

    assert job.traffic is not None
    settings = tried.settings
    changes = {name: getattr(settings, name) for name in ("slots", "context", "queue", "budget", "kv_tokens", "mode")}
    wanted = start.model_copy(update=changes)
    try:
        return [verify(wanted, job.traffic, job.calibration.wording, say) for _ in range(times)]
    except (RequestFailedError, AdminError) as error:
        fail(str(error), FAILED)
    except EngineExitedError as error:
        for line in error.lines[-5:]:
            say(line)
        fail("the private engine ended before it served", FAILED)


@dataclass(frozen=True)
class Search:
    """The given flags."""

    kind: TrafficKind | None
    begin: str | None
    end: str | None
    users: int
    seconds: float | None
    context: int | None
    goals: Goals
    modes: tuple[str, ...]
    seed: int
    verify: bool
    runs: int
    recording: Path | None
    as_json: bool


def plan_search(wanted: Search, admin: AdminClient, start: StartSettings) -> None:
    """Search, print, and verify if asked to. The command ends with a sentence if something is missing."""
    from slotdeck.console.cli.plan_search_report import search_json, search_text, verify_text

    calibration, frame = read_speed(admin)
    job, traffic = _job(wanted, calibration, frame)
    started = time.monotonic()
    found = run_search(job)
    seconds = time.monotonic() - started
    now = None if frame is None else Trial.of(job.base, job.run(job.base))
    choice = found.choice
    if choice is None:
        fail(f"the memory is too small for a pool with one context of {job.context} tokens", FAILED)
    if not wanted.as_json:
        print("\n".join(search_text(found, calibration, traffic, seconds, now)), flush=True)
    if wanted.recording is not None:
        try:
            count = write_recording(job, choice.settings, wanted.recording)
        except OSError as error:
            fail(f"could not write {wanted.recording}: {error.strerror or error}", FAILED)
        say(f"wrote {count} simulated frames; watch them with `slotdeck replay {wanted.recording}`")
    verified: dict[str, Sequence[MeasuredService]] = {}
    if wanted.verify:
        for title, tried in (("choice", choice), ("runner-up", found.runner_up)):
            if tried is None:
                continue
            verified[title] = verify_one(job, tried, start, wanted.runs)
            if not wanted.as_json:
                print("\n".join(["", *verify_text(title, tried, verified[title])]), flush=True)
    if wanted.as_json:
        print(json.dumps(search_json(found, calibration, traffic, verified, now), indent=2, ensure_ascii=False))


def _job(wanted: Search, calibration: Calibration, frame: Frame | None) -> tuple[Job, str]:
    """The job, and a description of its traffic."""
    base = LiveSettings() if frame is None else settings_of(frame)
    traffic: Traffic | None = None
    records: list[RequestRecord] = []
    if wanted.kind is not None:
        context = wanted.context or base.context
        traffic = Traffic(wanted.kind, wanted.users, wanted.seconds or SECONDS[wanted.kind], context, wanted.seed)
        words, users = describe(traffic), wanted.users
    else:
        records, words = _recorded(wanted)
        context = max(wanted.context or 0, context_of(records))
        users = len(users_of(records))
    job = Job(
        calibration=calibration,
        base=base,
        goals=wanted.goals,
        traffic=traffic,
        records=tuple(records),
        context=context,
        max_slots=max(MIN_MAX_SLOTS, int(SLOTS_PER_USER * users)),
        max_pool=max(context, min(max_pool(calibration, frame), 2 * users * context)),
        modes=wanted.modes,
        seed=wanted.seed,
    )
    return job, words


def _recorded(wanted: Search) -> tuple[list[RequestRecord], str]:
    from slotdeck.console.cli.history import open_history
    from slotdeck.engine.telemetry.history.reader import HistoryError

    history = open_history()
    begin, end = time_range(wanted.begin, wanted.end, time.time())
    try:
        records = history.requests(begin, end)
    except HistoryError as error:
        fail(str(error), FAILED)
    users = users_of(records)
    if not users:
        fail("no answered request was recorded in that time", NOTHING_RECORDED)
    names = {user.name for user in users}
    shown = " to ".join(time.strftime("%a %H:%M", time.localtime(moment)) for moment in (begin, end))
    return (
        records,
        f"{len(records)} requests of {len(names)} users as recorded, {shown}; refused requests are not recorded",
    )
