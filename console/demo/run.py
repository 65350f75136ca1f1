"""Runs a demonstration on a real engine: sets the mode, simulates the users, counts, and restores the settings."""

from __future__ import annotations

import asyncio
import dataclasses
import fcntl
import gzip
import itertools
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from httpx import AsyncClient

from slotdeck.console.client.admin import AdminClient
from slotdeck.console.demo.result import CallResult, Result, result_of
from slotdeck.console.demo.rows import KINDS, Call, Row
from slotdeck.console.demo.sentences import sentence
from slotdeck.console.demo.settings_lease import SettingsLease
from slotdeck.console.demo.state import Event
from slotdeck.console.demo.watch import Watch
from slotdeck.console.load.client import BusyError, Completion, Endpoint, RequestFailedError, chat, make_client
from slotdeck.console.load.prompts import WORDS, bench_prompt
from slotdeck.console.load.tally import Tally
from slotdeck.console.load.traffic import Target
from slotdeck.console.load.users import SimulatedUser
from slotdeck.console.sources.base import Disconnected
from slotdeck.console.sources.engine import EngineSource
from slotdeck.engine.telemetry.frame import Frame

MakeRows = Callable[[dict[str, Any], int | None], list[Row]]
"""Makes the rows from the engine's live settings and the model's longest context."""

SAMPLE_SECONDS = 1.0
LOST_SECONDS = 15.0
"""If no frame comes for this long, the engine counts as lost."""
DRAIN_SECONDS = 120.0
"""How long to wait for other users' requests that still run in the previous mode."""
WARM_UP_WORDS = 200
WARM_UP_TOKENS = 16
TEMPLATE_TOKENS = 30
STEP_SECONDS = 5.0
"""Limit for one step at the speed of the warm-up. An engine ends itself if a step does not return."""
ANSWER_SECONDS = 15.0
"""Limit for a scripted answer that runs alone, so that an act also ends on a slow machine."""
MIN_ANSWER_TOKENS = 60


@dataclass
class _Running:
    """The row that runs now."""

    index: int
    row: Row
    tally: Tally
    watch: Watch
    calls: list[CallResult]

    def result(self) -> Result:
        return result_of(self.tally, self.watch, self.calls)


class DemoError(RuntimeError):
    """The demonstration cannot continue. The message says why."""


class Demo:
    """One demonstration on the engine behind ``socket``.

    ``on_event`` gets every event (:mod:`slotdeck.console.demo.state`). ``recording`` is a file for the engine's frames,
    which `slotdeck replay` can play.
    """

    def __init__(
        self, socket: Path, make_rows: MakeRows, *, seed: int, on_event: Callable[[Event], None], recording: Path | None
    ) -> None:
        self._socket = socket
        self._make_rows = make_rows
        self._seed = seed
        self._on_event = on_event
        self._recording = recording
        self._admin = AdminClient(socket, timeout=30)
        self._names: list[str] = []
        self._endpoints: list[Endpoint] = []
        self._latest: Frame | None = None
        self._lost: str | None = None
        self._came = asyncio.Event()
        self._follower: asyncio.Task[None] | None = None
        self._watch: Watch | None = None
        self._tokens_per_word = 1.4
        self._prefill_speed: float | None = None
        self._decode_speed: float | None = None
        """Tokens per second of the warm-up."""

    async def run(self) -> None:
        """Run all rows. At the end, whatever happened, the user's settings are restored.

        Raises NoEngineError, AdminError, RequestFailedError, DemoError; OSError if the recording cannot be written.
        """
        frame = await asyncio.to_thread(self._admin.frame)
        borrowed = await asyncio.to_thread(SettingsLease, self._admin)
        rows = self._make_rows(borrowed.original, frame.engine.trained_context)
        engine = frame.engine.model_dump(
            include={"name", "version", "model", "weights", "kv_dtype", "device", "threads"}
        )
        plan = [dataclasses.asdict(row) | {"calls": [], "changes": {}} for row in rows]
        self._on_event({"event": "plan", "rows": plan, "engine": engine})
        target = Target(url=None, api_key=None, model=None, socket=self._socket)
        self._names = target.names(max(row.users for row in rows))
        self._endpoints = await target.endpoints(self._names)
        with _alone(self._socket), _output(self._recording) as out:
            follower = self._follower = asyncio.create_task(self._follow(out))
            follower.add_done_callback(lambda _: self._came.set())
            try:
                self._say("warming up")
                await self._warm_up()
                for index, row in enumerate(rows):
                    await self._row(index, row, borrowed)
            finally:
                self._say("restoring the settings")
                await asyncio.shield(asyncio.to_thread(borrowed.give_back))
                follower.cancel()
                await asyncio.gather(follower, return_exceptions=True)

    def _say(self, text: str) -> None:
        self._on_event({"event": "status", "text": text})

    # ------------------------------------------------------------------ the engine's frames

    async def _follow(self, out: IO[str] | None) -> None:
        async for update in EngineSource(self._socket).updates():
            if isinstance(update, Frame):
                self._latest, self._lost = update, None
                if self._watch is not None:
                    self._watch.add(update)
                if out is not None:
                    out.write(update.model_dump_json(exclude_defaults=True) + "\n")
            elif isinstance(update, Disconnected):
                self._lost = update.reason
            self._came.set()

    async def _until(self, condition: Callable[[Frame], bool], limit: float, problem: str) -> None:
        """Wait for a frame that fulfils ``condition``.

        Raises DemoError with ``problem`` if none comes within ``limit`` seconds, or if the engine is lost.
        """
        deadline = time.monotonic() + limit
        while self._latest is None or not condition(self._latest):
            if self._follower is not None and self._follower.done():
                self._follower.result()  # Raises what ended it, such as a full disk.
            self._came.clear()
            try:
                await asyncio.wait_for(self._came.wait(), min(LOST_SECONDS, max(0.1, deadline - time.monotonic())))
            except TimeoutError:
                self._lost = self._lost or "no frame came"
            if time.monotonic() > deadline:
                raise DemoError(self._lost or problem)

    def _ours_in_flight(self, frame: Frame) -> bool:
        names = set(self._names)
        held = any(slot.user in names and slot.state != "idle" for slot in frame.slots)
        return held or any(entry.user in names for entry in frame.waiting)

    # ------------------------------------------------------------------ one row

    async def _row(self, index: int, row: Row, borrowed: SettingsLease) -> None:
        self._on_event({"event": "row", "row": index})
        self._say(f"{row.group}: {row.name}")
        await self._until(
            lambda frame: not self._ours_in_flight(frame), DRAIN_SECONDS, "the demo's own requests do not end"
        )
        await asyncio.to_thread(borrowed.change, {"mode": row.mode} | self._limited(row.changes))
        newest = await asyncio.to_thread(self._admin.frame)
        if not _in_force(newest, row.mode):
            self._say(f"{row.group}: {row.name}, waiting for other users' requests in the previous mode")
        await self._until(
            lambda frame: _in_force(frame, row.mode),
            DRAIN_SECONDS,
            f"other users' requests keep the previous mode in force; try {row.mode} again when they have finished",
        )
        watch = Watch(set(self._names[: row.users]))
        now = _Running(index, row, Tally(row.users), watch, [CallResult(call.role, call.at) for call in row.calls])
        watch.add(await asyncio.to_thread(self._admin.frame))
        async with make_client(self._endpoints[0].url, row.users) as client:
            tasks = self._people(client, now) if row.who else self._script(client, now)
            self._watch = watch
            try:
                await self._measure(now, tasks)
                watch.add(await asyncio.to_thread(self._admin.frame))
            finally:
                self._watch = None
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        result = now.result()
        result.sentence = sentence(row, result)
        self._on_event({"event": "result", "row": index, "result": dataclasses.asdict(result)})

    def _people(self, client: AsyncClient, now: _Running) -> list[asyncio.Task[None]]:
        """The same people in every mode. Their words differ, so that no row uses a prefix of another one."""
        row, opening = now.row, f"{WORDS[now.index % len(WORDS)]}: "
        assert row.who is not None
        tasks = []
        for name, endpoint in zip(self._names[: row.users], self._endpoints[: row.users], strict=True):
            user = SimulatedUser(
                client, endpoint, now.tally, kind=KINDS[row.who], seed=f"{self._seed}/{name}", opening=opening,
                midway=True,
            )  # fmt: skip
            tasks.append(asyncio.create_task(user.run(), name=name))
        return tasks

    def _script(self, client: AsyncClient, now: _Running) -> list[asyncio.Task[None]]:
        return [
            asyncio.create_task(self._call(client, call, self._prompt(call, now.index), now.tally, result))
            for call, result in zip(now.row.calls, now.calls, strict=True)
        ]

    async def _measure(self, now: _Running, tasks: list[asyncio.Task[None]]) -> None:
        """Take a sample each second until the time is up or all scripted requests have ended."""
        row, tally, watch = now.row, now.tally, now.watch
        started = time.monotonic()
        seen = (0, 0)
        before = watch.newest
        for number in itertools.count(1):
            left = min(started + number * SAMPLE_SECONDS, started + row.seconds) - time.monotonic()
            await asyncio.wait(tasks, timeout=max(0.0, left))
            for task in tasks:
                if task.done():
                    task.result()  # Users never end by themselves, so this raises a fault.
            if self._lost is not None and self._latest is not None and time.time() - self._latest.time > LOST_SECONDS:
                raise DemoError(self._lost)
            passed = time.monotonic() - started
            sample = {
                "at": passed,
                "tokens": _speed(before, watch.newest),
                "ttft": max(list(tally.ttfts)[seen[0] :], default=None),
                "gap": max(list(tally.gaps)[seen[1] :], default=None),
                "waiting": len(watch.still_waiting),
            }
            seen, before = (len(tally.ttfts), len(tally.gaps)), watch.newest
            result = dataclasses.asdict(now.result())
            self._on_event({"event": "sample", "row": now.index, "sample": sample, "result": result})
            if passed >= row.seconds or all(task.done() for task in tasks):
                return

    # ------------------------------------------------------------------ requests

    async def _warm_up(self) -> None:
        """Send one request that is not counted, to measure tokens per word and the speed of this machine."""
        prompt = bench_prompt(0, time.time_ns(), WARM_UP_WORDS)
        async with make_client(self._endpoints[0].url, 1) as client:
            messages = [{"role": "user", "content": prompt}]
            try:
                answer = await chat(client, self._endpoints[0], messages, max_tokens=WARM_UP_TOKENS, temperature=0)
            except BusyError as error:
                raise DemoError("the engine is busy with other requests; try again later") from error
        if answer.prompt_tokens:
            self._tokens_per_word = max(1.0, (answer.prompt_tokens - TEMPLATE_TOKENS) / WARM_UP_WORDS)
            self._prefill_speed = answer.prompt_tokens / answer.ttft if answer.ttft else None
        self._decode_speed = len(answer.gaps) / sum(answer.gaps) if answer.gaps else None

    def _limited(self, changes: dict[str, Any]) -> dict[str, Any]:
        """A scene's settings, with the budget limited to what this machine computes in a few seconds."""
        if "budget" not in changes or self._prefill_speed is None:
            return changes
        most = max(64, int(self._prefill_speed * STEP_SECONDS))
        return changes | {"budget": min(changes["budget"], most)}

    def _answer_tokens(self, call: Call) -> int:
        if self._decode_speed is None:
            return call.answer
        return min(call.answer, max(MIN_ANSWER_TOKENS, int(self._decode_speed * ANSWER_SECONDS)))

    def _prompt(self, call: Call, index: int) -> str:
        """A prompt of about as many tokens as the call asks for. No two prompts begin alike."""
        rng = random.Random(f"{self._seed}/{index}/{call.user}/{call.at}")
        words = max(4, round((call.prompt - TEMPLATE_TOKENS) / self._tokens_per_word))
        return " ".join(rng.choices(WORDS, k=words))

    async def _call(self, client: AsyncClient, call: Call, prompt: str, tally: Tally, result: CallResult) -> None:
        began = time.monotonic()
        await asyncio.sleep(call.at)
        result.at = time.monotonic() - began

        def text(answer: Completion) -> None:
            tally.text_arrived(answer)
            result.ttft, result.tokens = answer.ttft, answer.chunks
            if answer.gaps:
                result.longest_gap = max(result.longest_gap or 0.0, answer.gaps[-1])

        tally.requests += 1
        sent = time.monotonic()
        try:
            messages = [{"role": "user", "content": prompt}]
            answer = await chat(
                client,
                self._endpoints[call.user],
                messages,
                max_tokens=self._answer_tokens(call),
                temperature=0,
                extra={"ignore_eos": True},
                on_text=text,
            )
        except BusyError:
            tally.rejected += 1
            result.refused = True
        except RequestFailedError as error:
            tally.failed(error.kind, str(error))
            result.error = str(error)
        except asyncio.CancelledError:
            if result.ttft is None:
                result.open = time.monotonic() - sent
            raise
        else:
            tally.answered(answer)
            result.tokens = answer.generated
            result.seconds = None if answer.last is None else answer.last - answer.sent


def _in_force(frame: Frame, mode: str) -> bool:
    """True if the next request runs in this mode. An idle engine only switches when a request comes."""
    limits = frame.limits
    return (limits.mode == mode and limits.next_mode is None) or (limits.next_mode == mode and not frame.running)


def _speed(before: Frame | None, now: Frame | None) -> float | None:
    """Tokens per second between two frames."""
    if before is None or now is None or now.time <= before.time:
        return None
    start, end = before.counters.generated_tokens, now.counters.generated_tokens
    return None if start is None or end is None else (end - start) / (now.time - before.time)


@contextmanager
def _alone(socket: Path) -> Iterator[None]:
    """Allow one demonstration at a time on an engine. The system unlocks the file when the process ends."""
    with socket.with_name(socket.name + ".demo").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DemoError("another demo is running on this engine; wait until it ends") from None
        yield


@contextmanager
def _output(path: Path | None) -> Iterator[IO[str] | None]:
    """A compressed file for frames; ``None`` without a path."""
    if path is None:
        yield None
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", encoding="utf-8") as out:
        yield out
