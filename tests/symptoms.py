"""``python -m tests.symptoms [NAME …]``: provoke each symptom that the doctor knows on a real engine, and record it.

Each case starts an engine on the embedded model, sends it visitors for half a minute, and writes the engine's frames,
one a second as in the history, to ``tests/recordings/symptoms/NAME.ndjson.gz``. The doctor's tests read these files, so
that its rules are tested against what an engine really does. Without names, all cases are recorded again; each takes
about a minute.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from slotdeck.console.load.prompts import WORDS, user_name
from slotdeck.console.sources.recording import write_frames
from slotdeck.engine.telemetry.frame import Frame
from tests.support.real_engine import RealEngine

FOLDER = Path(__file__).parent / "recordings" / "symptoms"


@dataclass(frozen=True)
class Visitors:
    """``count`` people who behave alike. Prompts are in words, answers in tokens, times in seconds."""

    count: int
    words: int = 40
    answer: int = 120
    pause: tuple[float, float] = (0.0, 0.0)
    """Shortest and longest pause between an answer and the next question."""
    patience: float | None = None
    """They leave if no text has come after this time, and ask again. None: they wait."""
    same_start: int = 0
    """Number of words at the beginning of each prompt that are always the same."""
    first: float = 0.0
    """When the first of them arrives; the others follow within a second."""


@dataclass(frozen=True)
class Case:
    """A symptom: the engine's settings, the visitors, and for how long frames are recorded."""

    name: str
    settings: dict[str, Any]
    visitors: tuple[Visitors, ...]
    seconds: float = 30.0
    starts: int = 1
    """How many engines are started one after another; each is recorded for ``seconds``."""
    keep: int = field(default=1)
    """Keep one frame out of this many."""


CASES = (
    Case("healthy-two", {}, (Visitors(2, pause=(1, 4)),)),
    Case("healthy-longer-prompts", {}, (Visitors(1, words=150, pause=(1, 2)),)),
    Case("one-slot", {"slots": 1}, (Visitors(5, answer=80),)),
    Case("serial", {"mode": "serial"}, (Visitors(5, answer=200),)),
    Case("static", {"mode": "static"}, (Visitors(5, answer=60, pause=(0, 1)), Visitors(1, answer=900)), 40),
    Case("pool-holds-back", {"slots": 6, "context": 1024, "kv_tokens": 1280}, (Visitors(6, words=400, answer=60),)),
    Case("nobody-may-wait", {"slots": 2, "queue": 0}, (Visitors(6, pause=(0.5, 1)),)),
    Case("queue-too-short", {"slots": 2, "queue": 2}, (Visitors(10, pause=(0.5, 1)),)),
    Case("queue-too-deep", {"slots": 1, "queue": 64}, (Visitors(14, answer=250, patience=12),), 55),
    Case("preempting", {"slots": 4, "context": 512, "kv_tokens": 512}, (Visitors(4, answer=300),)),
    Case("small-budget", {"slots": 5, "budget": 8}, (Visitors(5, words=600, answer=20, pause=(0.1, 0.5)),), 55),
    Case(
        "many-streams",
        {"slots": 64, "context": 512, "threads": 1},
        (Visitors(64, words=20, answer=400),),
        45,
        keep=3,
    ),
    Case(
        "large-budget",
        {"context": 4096, "budget": 4096, "slots": 5},
        (Visitors(3, answer=400), Visitors(1, words=900, answer=5, pause=(1, 2), first=3)),
    ),
    Case("small-context", {"context": 512}, (Visitors(2, pause=(0.5, 2)), Visitors(1, words=600, pause=(3, 6)))),
    Case("restarted", {}, (Visitors(2, pause=(0.5, 2)),), 12, starts=3),
)


class Crowd:
    """Visitors in a thread of their own, until :meth:`leave`."""

    def __init__(self, engine: RealEngine, visitors: Sequence[Visitors]) -> None:
        self._engine = engine
        self._who = [(kind, place) for kind in visitors for place in range(kind.count)]
        names = [f"~{user_name(number)}" for number in range(len(self._who))]
        keys = engine.admin.post("/admin/guest-keys", json={"labels": names}).json()["keys"]
        self._keys = [keys[name] for name in names]
        self._loop: asyncio.AbstractEventLoop | None = None
        self._all: asyncio.Future[list[Any]] | None = None

    def run(self) -> None:
        try:
            asyncio.run(self._run())
        except asyncio.CancelledError:
            pass

    def leave(self) -> None:
        if self._loop is not None and self._all is not None:
            self._loop.call_soon_threadsafe(self._all.cancel)

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        async with httpx.AsyncClient(base_url=self._engine.url, timeout=120, limits=httpx.Limits()) as client:
            self._all = asyncio.gather(
                *(self._visit(client, number, kind, place) for number, (kind, place) in enumerate(self._who))
            )
            await self._all

    async def _visit(self, client: httpx.AsyncClient, number: int, kind: Visitors, place: int) -> None:
        rng = random.Random(f"{number}")
        start = " ".join(random.Random("start").choices(WORDS, k=kind.same_start))
        await asyncio.sleep(kind.first + place / kind.count)
        while True:
            prompt = f"{start} {' '.join(rng.choices(WORDS, k=kind.words - kind.same_start))}"
            answer = round(kind.answer * rng.uniform(0.7, 1.3))
            body = {
                "messages": [{"role": "user", "content": prompt}],
                "max_tokens": answer,
                "min_tokens": answer,
                "stream": True,
            }
            headers = {"Authorization": f"Bearer {self._keys[number]}"}
            again = 0.0
            async with client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as response:
                if response.status_code == 503:
                    again = float(response.headers["retry-after"])
                try:
                    async with asyncio.timeout(kind.patience) as patience:
                        async for line in response.aiter_lines():
                            if line.startswith("data: {") and _text(json.loads(line.removeprefix("data: "))):
                                patience.reschedule(None)
                except TimeoutError:
                    pass
            await asyncio.sleep(again or rng.uniform(*kind.pause) or 0.01)


def _text(chunk: dict[str, Any]) -> bool:
    return any(choice.get("delta", {}).get("content") for choice in chunk.get("choices", ()))


@contextmanager
def crowd(engine: RealEngine, visitors: Sequence[Visitors]) -> Iterator[None]:
    """Visitors who come and go while this context is open."""
    if not visitors:
        yield
        return
    people = Crowd(engine, visitors)
    thread = threading.Thread(target=people.run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        people.leave()
        thread.join(10)


def watch(case: Case) -> list[Frame]:
    """The frames of one engine, from its start on."""
    frames: list[Frame] = []
    with RealEngine(**case.settings) as engine:
        with engine.admin.stream("GET", "/admin/stream?rate=1") as response, crowd(engine, case.visitors):
            for line in response.iter_lines():
                frames.append(Frame.model_validate_json(line))
                if frames[-1].time - frames[0].time >= case.seconds:
                    break
        if case.starts > 1:
            frames.append(engine.wait_until_idle())  # so that its end looks like a stop and not like a crash
    return frames


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    names = sys.argv[1:]
    unknown = set(names) - {case.name for case in CASES}
    if unknown:
        sys.exit(f"no such case: {', '.join(sorted(unknown))}; there are {', '.join(case.name for case in CASES)}")
    for case in CASES:
        if names and case.name not in names:
            continue
        began = time.monotonic()
        frames = [frame for _ in range(case.starts) for frame in watch(case)]
        path = FOLDER / f"{case.name}.ndjson.gz"
        write_frames(path, frames[:: case.keep])
        last = frames[-1]
        print(
            f"{case.name:<22} {time.monotonic() - began:4.0f} s  {path.stat().st_size >> 10:4} KiB  "
            f"TTFT p95 {last.minute.ttft_p95} wait p95 {last.minute.wait_p95} n={last.minute.ttft_count}  "
            f"ITL p50 {last.minute.itl_p50} p95 {last.minute.itl_p95} max {last.minute.itl_max}  "
            f"preempted {last.counters.preemptions} rejected {last.counters.rejected}",
            flush=True,
        )


if __name__ == "__main__":
    main()
