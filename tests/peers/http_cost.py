"""What HTTP costs for each token: ``python -m tests.peers.http_cost``.

A real server over a real engine loop, whose model is replaced by a script that takes no processor time; 20 clients in
another process read streams of 200 tokens a second together. Counted is the processor time of the server's thread alone
(detokenising, stop strings, JSON, uvicorn, sockets), and beside it that of the loop's thread (planning, committing).
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from slotdeck.engine.core.step import ModelRunnerOutput, SchedulerOutput
from slotdeck.engine.loop.engine_loop import EngineLoop
from slotdeck.engine.model.load import find_model
from slotdeck.engine.server.context import ServedModel
from slotdeck.engine.server.listeners import open_listeners
from slotdeck.engine.server.output_router import OutputRouter
from slotdeck.engine.server.serve import serve
from slotdeck.engine.settings import BLOCK_SIZE, LiveSettings, StartSettings
from slotdeck.engine.telemetry.frame import EngineInfo
from slotdeck.engine.text.tokenizer import TextModel
from tests.support.model_free import NoTensors

STREAMS = 20
STEP_SECONDS = 0.1
TOKENS = 60
PROSE = (
    "The lamp in the harbour was older than the town. Every evening its keeper climbed the stairs with a can of oil,"
    " counted the steps — ninety-one — and lit the wick for ships that, most nights, did not come. "
)


class Script(NoTensors):
    """Writes prose at a steady pace."""

    def __init__(self, token_ids: list[int]) -> None:
        super().__init__()
        self._tokens = itertools.cycle(token_ids)
        self.pace = STEP_SECONDS

    def run(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
        time.sleep(self.pace)
        result = ModelRunnerOutput()
        for row in scheduler_output.rows:
            if row.samples:
                result.tokens[row.request.id] = next(self._tokens)
        return result


def read_streams(url: str, streams: int, tokens: int) -> None:
    """The clients, in a process of their own: they read every stream to its end, as bytes."""

    async def one(host: str, port: int) -> None:
        body = json.dumps(
            {"messages": [{"role": "user", "content": "Tell me."}], "stream": True, "max_tokens": tokens}
        ).encode()
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        )
        while await reader.read(65536):
            pass
        writer.close()

    async def every() -> None:
        host, _, port = url.removeprefix("http://").partition(":")
        await asyncio.gather(*(one(host, int(port)) for _ in range(streams)))

    asyncio.run(every())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--profile", action="store_true", help="print where the server's thread spends its time")
    parser.add_argument("--clients", metavar="URL", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.clients:
        read_streams(arguments.clients, STREAMS, TOKENS)
        return
    found = find_model("smollm2")
    text = TextModel(found.tokenizer_folder)
    runner = Script(text._encode(text._tokenizer, PROSE))
    with tempfile.TemporaryDirectory() as name:
        settings = StartSettings(port=0, socket=Path(name) / "engine.sock")
        output_router = OutputRouter()
        limits = LiveSettings(slots=STREAMS, queue=2 * STREAMS)
        loop = EngineLoop(
            runner, limits, 64 * limits.context // BLOCK_SIZE, output_router.deliver, EngineInfo(model="script")
        )
        ready = threading.Event()
        with open_listeners(settings) as listeners:
            loop.start()
            served = ServedModel("script", 0, frozenset(), found.config.vocab_size)

            def run() -> None:
                asyncio.run(
                    serve(
                        loop,
                        output_router,
                        text=text,
                        model=served,
                        settings=settings,
                        listeners=listeners,
                        on_ready=lambda _: ready.set(),
                    )
                )

            target = run
            if arguments.profile:
                import cProfile

                profile = cProfile.Profile()
                target = lambda: profile.runcall(run)  # noqa: E731
            server = threading.Thread(target=target)
            server.start()
            assert ready.wait(20)
            rounds = [_round(listeners.url, server, loop) for _ in range(arguments.rounds + 1)][1:]
            import httpx

            with httpx.Client(transport=httpx.HTTPTransport(uds=str(settings.socket)), base_url="http://e") as admin:
                admin.post("/admin/shutdown", json={"force": True})
            server.join()
            loop.stop()
            if arguments.profile:
                import pstats

                pstats.Stats(profile).sort_stats("tottime").print_stats(45)
    for what, values in zip(("server thread", "loop thread"), zip(*rounds, strict=True), strict=True):
        each = ", ".join(f"{value * 1e6:.0f}" for value in values)
        median = statistics.median(values)
        print(f"{what}: {median * 1e6:.0f} µs per token, {median * 200:.1%} of a core at 200 tok/s  ({each})")


def _round(url: str, server: threading.Thread, loop: EngineLoop) -> tuple[float, float]:
    clocks = [time.pthread_getcpuclockid(thread.ident or 0) for thread in (server, loop._steps.thread)]
    before = [time.clock_gettime(clock) for clock in clocks]
    subprocess.run([sys.executable, "-m", "tests.peers.http_cost", "--clients", url], check=True)
    after = [time.clock_gettime(clock) for clock in clocks]
    server_seconds, loop_seconds = (end - start for start, end in zip(before, after, strict=True))
    return server_seconds / (STREAMS * TOKENS), loop_seconds / (STREAMS * TOKENS)


if __name__ == "__main__":
    main()
