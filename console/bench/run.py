"""Runs the stages of a bench, against a URL or against an engine of our own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import httpx

from slotdeck.console.bench.flame_graph import draw, sample_stacks
from slotdeck.console.bench.machine import describe_machine
from slotdeck.console.bench.report import BenchReport
from slotdeck.console.bench.stage import Stage, measure, warm_up
from slotdeck.console.client.admin import AdminClient
from slotdeck.console.load.client import Endpoint, base_url, discover, make_client
from slotdeck.console.load.tally import duration
from slotdeck.engine.telemetry.frame import Frame
from slotdeck.engine.telemetry.step_profile import Profile


@dataclass(frozen=True)
class BenchOptions:
    """What to measure: one stage for each number of users, with ``requests`` each. ``say`` gets the progress."""

    user_counts: list[int]
    requests: int
    seed: int
    say: Callable[[str], None]
    profile: bool = False
    """Also measure and draw where the time of our own engine's steps goes."""


async def bench_url(plan: BenchOptions, url: str, api_key: str | None, model: str | None) -> BenchReport:
    """Measure any OpenAI-compatible server. Raises RequestFailedError if it cannot serve the warm-up."""
    base = base_url(url)
    async with make_client(base, max(plan.user_counts)) as client:
        endpoint = await discover(client, base, api_key, model)
        runner = _Runner(plan, client, endpoint)
        await runner.warm_up()
        for users in plan.user_counts:
            await runner.stage(users, None)
    server = {"url": base, "model": endpoint.model, "context": endpoint.context}
    return BenchReport(server, describe_machine(), plan.requests, plan.seed, runner.stages)


async def bench_engine(plan: BenchOptions, admin: AdminClient, frame: Frame) -> BenchReport:
    """Measure our own engine on all its slots, then the most users on one slot. Raises RequestFailedError."""
    url, slots, most = frame.engine.url or "", frame.limits.slots, max(plan.user_counts)
    ratio = None
    async with make_client(url, most) as client:
        runner = _Runner(plan, client, await discover(client, url, None, None))
        await runner.warm_up()
        profiles: list[tuple[str, Profile]] = []
        flame = None
        for users in plan.user_counts:
            if not plan.profile:
                await runner.stage(users, slots)
                continue
            before = await _profile(admin)
            if users == most and frame.engine.pid is not None:
                with sample_stacks(frame.engine.pid) as recorded:
                    await runner.stage(users, slots)
            else:
                recorded = None
                await runner.stage(users, slots)
            spent = (await _profile(admin)).since(before)
            profiles.append((f"{users} user{'s' if users > 1 else ''}", spent))
            if recorded is not None:
                flame = draw(recorded, spent, f"{frame.engine.model}, {users} users", plan.say)
        if slots is not None and slots > 1:
            whole = next(stage for stage in runner.stages if stage.users == most)
            await _set_slots(admin, 1)
            single = await runner.stage(most, 1)
            await _set_slots(admin, slots)
            if whole.tokens_per_second and single.tokens_per_second:
                ratio = whole.tokens_per_second / single.tokens_per_second
    engine = frame.engine
    server = {
        "engine": f"{engine.name} {engine.version or ''}".strip(),
        "model": engine.model,
        "weights": engine.weights,
        "KV": engine.kv_dtype,
        "device": engine.device,
        "threads": engine.threads,
        "context": frame.limits.context,
        "budget": frame.limits.budget,
        "pool": frame.pool.total,
    }
    return BenchReport(
        server,
        describe_machine(),
        plan.requests,
        plan.seed,
        runner.stages,
        ratio,
        most if ratio else None,
        profiles,
        flame,
    )


async def _profile(admin: AdminClient) -> Profile:
    return Profile.model_validate(await asyncio.to_thread(admin.call, "GET", "/admin/profile"))


async def _set_slots(admin: AdminClient, slots: int) -> None:
    changes = {"changes": {"slots": slots}, "source": "bench"}
    await asyncio.to_thread(admin.call, "PATCH", "/admin/settings", changes)


class _Runner:
    """Runs stages. It numbers the prompts across them, so that none is sent twice."""

    def __init__(self, plan: BenchOptions, client: httpx.AsyncClient, endpoint: Endpoint) -> None:
        self.stages: list[Stage] = []
        self._plan = plan
        self._client = client
        self._endpoint = endpoint
        self._next_prompt = 1

    async def warm_up(self) -> None:
        self._plan.say("warming up")
        await warm_up(self._client, self._endpoint, self._plan.seed)

    async def stage(self, users: int, slots: int | None) -> Stage:
        on_slots = "" if slots is None else f" on {slots} slot{'s' if slots > 1 else ''}"
        self._plan.say(f"{users} user{'s' if users > 1 else ''}{on_slots}, {self._plan.requests} requests each")
        stage = await measure(
            self._client,
            self._endpoint,
            users=users,
            requests=self._plan.requests,
            seed=self._plan.seed,
            first_prompt=self._next_prompt,
            slots=slots,
        )
        self._next_prompt += stage.requests
        self.stages.append(stage)
        speed = "no text" if stage.tokens_per_second is None else f"{stage.tokens_per_second:.1f} tok/s"
        self._plan.say(f"  {speed}, TTFT p95 {duration(stage.ttft_p95)}, ITL p95 {duration(stage.itl_p95)}")
        return stage
