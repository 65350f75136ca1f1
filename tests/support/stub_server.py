"""A real server over a real engine loop, in a thread; only the model is replaced by a script.

The last user message decides the answer: ``say: TEXT`` answers TEXT and ends, ``forever`` never ends, ``explode``
makes the whole step fail. ``runner.gate`` holds every step while it is cleared.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from slotdeck.engine.core.request import Request, SamplingParams
from slotdeck.engine.core.step import ModelRunnerOutput, SchedulerOutput, TokenLogprobs
from slotdeck.engine.loop.engine_loop import EngineLoop
from slotdeck.engine.server.context import ServedModel
from slotdeck.engine.server.http_limits import HttpLimits
from slotdeck.engine.server.listeners import open_listeners
from slotdeck.engine.server.output_router import OutputRouter
from slotdeck.engine.server.serve import serve
from slotdeck.engine.settings import BLOCK_SIZE, LiveSettings, StartSettings
from slotdeck.engine.telemetry.frame import EngineInfo, Frame
from slotdeck.engine.text.tokenizer import TextModel
from tests.support.model_free import NoTensors

MODEL = "tiny-chat"


class ScriptRunner(NoTensors):
    """A model that answers as the prompt tells it. ``pace`` is the duration of a step in seconds."""

    def __init__(self, text: TextModel) -> None:
        super().__init__()
        self.text = text
        self.gate = threading.Event()
        self.gate.set()
        self.pace = 0.0005
        self.seen: list[str] = []
        """The prompts that were computed, in the order of their first steps."""
        self.params: list[SamplingParams] = []
        """The sampling parameters of these prompts."""
        self._answers: dict[str, Iterator[int]] = {}

    def run(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
        self.gate.wait()
        time.sleep(self.pace)
        result = ModelRunnerOutput()
        for row in scheduler_output.rows:
            request = row.request
            if request.id not in self._answers:
                self._answers[request.id] = self._answer(request)
            if row.samples:
                token = result.tokens[request.id] = next(self._answers[request.id])
                if request.sampling.top_logprobs is not None:
                    top = ((token, -0.5), *((other, -2.0) for other in range(request.sampling.top_logprobs - 1)))
                    result.logprobs[request.id] = TokenLogprobs(-0.5, top[: request.sampling.top_logprobs])
        return result

    def _answer(self, request: Request) -> Iterator[int]:
        prompt = self.text.decode(request.token_ids[: request.num_prompt_tokens])
        self.seen.append(prompt)
        self.params.append(request.sampling)
        asked = prompt.rpartition("user\n")[2].removesuffix("\nassistant\n")
        if "explode" in asked:
            raise RuntimeError(f"secret-in-exception {asked}")
        if asked.startswith("say: "):
            ids = self.text._encode(self.text._tokenizer, asked.removeprefix("say: "))
            return itertools.chain(ids, itertools.repeat(next(iter(self.text.end_token_ids))))
        return itertools.cycle(self.text._encode(self.text._tokenizer, " la"))


class RunningServer:
    """A server in a thread; ``client`` and ``admin`` are httpx clients over TCP and the unix socket."""

    def __init__(
        self,
        tokenizer: Path,
        runtime: Path,
        *,
        limits: LiveSettings,
        kv_tokens: int,
        settings: dict[str, Any],
        http_limits: dict[str, Any] | None = None,
    ) -> None:
        self.settings = StartSettings(port=0, socket=runtime / "engine.sock", **settings)
        self.http_limits = None if http_limits is None else HttpLimits(self.settings.max_body, **http_limits)
        self.text = TextModel(tokenizer)
        self.runner = ScriptRunner(self.text)
        self.output_router = OutputRouter(max_pending=200)
        info = EngineInfo(model=MODEL, trained_context=8192)
        self.engine = EngineLoop(self.runner, limits, kv_tokens // BLOCK_SIZE, self.output_router.deliver, info)
        self.exit_code: int | None = None
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(20)
        if self._failure is not None:
            raise self._failure
        self.client = httpx.Client(base_url=self.url, timeout=20)
        self.admin = httpx.Client(
            transport=httpx.HTTPTransport(uds=str(self.settings.socket)), base_url="http://engine", timeout=20
        )

    def _run(self) -> None:
        try:
            with open_listeners(self.settings) as listeners:
                self.url = listeners.url
                self.engine.info = self.engine.info.model_copy(update={"url": self.url})
                self.engine.start()
                self.exit_code = asyncio.run(
                    serve(
                        self.engine,
                        self.output_router,
                        text=self.text,
                        model=ServedModel(id=MODEL, created=1_700_000_000, stop_token_ids=frozenset(), vocabulary=420),
                        settings=self.settings,
                        listeners=listeners,
                        on_ready=lambda _: self._ready.set(),
                        http_limits=self.http_limits,
                    )
                )
        except BaseException as error:
            self._failure = error
        finally:
            self._ready.set()
            self.runner.gate.set()
            if self.engine._steps.thread.ident is not None:
                self.engine.stop()

    def ended(self, timeout: float = 20) -> bool:
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def stop(self) -> None:
        self.runner.gate.set()
        if self._thread.is_alive():
            try:
                self.admin.post("/admin/shutdown", json={"force": True})
            except httpx.TransportError:
                pass
        assert self.ended()
        self.client.close()
        self.admin.close()

    # -- shorthands ------------------------------------------------------------------------------------------

    def chat(
        self, content: Any = "say: hello", *, headers: dict[str, str] | None = None, **fields: Any
    ) -> httpx.Response:
        body = {"model": MODEL, "messages": [{"role": "user", "content": content}]} | fields
        return self.client.post("/v1/chat/completions", json=body, headers=headers)

    def raw_chat(self, content: str, **fields: Any) -> socket.socket:
        """Send a chat request on a bare socket and leave the answer unread."""
        import json

        body = json.dumps({"messages": [{"role": "user", "content": content}]} | fields).encode()
        connection = socket.create_connection(("127.0.0.1", self.port))
        connection.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: " + str(len(body)).encode() + b"\r\n\r\n" + body
        )
        return connection

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def frame(self) -> Frame:
        return Frame.model_validate_json(self.admin.get("/admin/frame").text)

    def until(self, condition: Callable[[Frame], bool]) -> Frame:
        """The first frame for which ``condition`` holds. Fails if none comes."""
        deadline = time.monotonic() + 15
        while time.monotonic() < deadline:
            frame = self.frame()
            if condition(frame):
                return frame
            time.sleep(0.005)
        raise AssertionError(f"never came to pass; last: {frame!r}")

    def idle(self) -> Frame:
        """Wait until nothing runs or waits and no handler is left.

        Every block must be free and every request accounted for.
        """
        frame = self.until(
            lambda frame: frame.running == 0 and frame.waiting_count == 0 and self.output_router.num_open == 0
        )
        assert frame.pool.live == 0
        counts = frame.counters
        ends = (counts.finished, counts.cancelled, counts.failed, counts.rejected, counts.invalid)
        assert counts.received == sum(count or 0 for count in ends)
        return frame


@contextmanager
def running(
    tokenizer: Path,
    runtime: Path,
    *,
    slots: int = 4,
    context: int = 512,
    queue: int = 16,
    queue_share: int = 100,
    kv_tokens: int | None = None,
    http_limits: dict[str, Any] | None = None,
    **settings: Any,
) -> Iterator[RunningServer]:
    """A server that runs. All its clients come from one address, so one user may fill the queue unless asked else."""
    limits = LiveSettings(slots=slots, context=context, queue=queue, queue_share=queue_share, budget=64)
    pool = kv_tokens or slots * context
    server = RunningServer(
        tokenizer, runtime, limits=limits, kv_tokens=pool, settings=settings, http_limits=http_limits
    )
    try:
        yield server
    finally:
        server.stop()


def events(response: httpx.Response) -> list[Any]:
    """The data of a stream's events, without comments and without the ``[DONE]`` that must end it."""
    lines = [line for line in response.text.split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1] if not line.startswith(":")]


def text_of(chunks: list[Any]) -> str:
    return "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])


def billed(usage: dict[str, Any]) -> dict[str, int]:
    """The usage without what depends on the content of the prefix cache."""
    return {name: value for name, value in usage.items() if name != "prompt_tokens_details"}
