"""A call that ends before the engine accepts it is counted once for each of its requests, however it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest

from slotdeck.engine.core.events import RequestTooLargeError
from slotdeck.engine.loop.engine_loop import EngineUnavailableError
from slotdeck.engine.server.accounting import receive_call
from slotdeck.engine.server.client_watch import ClientDisconnectedError
from slotdeck.engine.server.errors import TOO_LONG, ApiError, failed, invalid, unavailable
from slotdeck.engine.telemetry.telemetry import Telemetry
from tests.support.stub_server import RunningServer, running


@pytest.fixture
def telemetry() -> Telemetry:
    return Telemetry(iter(repeat(1.0)).__next__, iter(repeat(2.0)).__next__)


def counted(telemetry: Telemetry) -> dict[str, int]:
    """All counters that are not 0."""
    return {name: count for name, count in telemetry.counters().model_dump().items() if count}


def call_that_ends(
    telemetry: Telemetry, error: BaseException, num_requests: int | None = None, accepted: bool = False
) -> None:
    with receive_call(telemetry, "laptop") as call:
        if num_requests is not None:
            call.set_num_requests(num_requests)
        call.accepted = accepted
        raise error


@pytest.mark.parametrize(
    ("error", "end"),
    [
        (invalid("n", "wrong"), {"invalid": 3}),
        (invalid("messages", "long", code=TOO_LONG), {"invalid": 3, "too_long": 3}),
        (unavailable("full", "engine_unavailable", 5), {"rejected": 3}),
        (unavailable("full", "queue_full", 5), {}),  # counted by the engine
        (failed("broken"), {"failed": 3}),
        (KeyError("ours"), {"failed": 3}),
        (ClientDisconnectedError(), {"cancelled": 3}),
        (asyncio.CancelledError(), {"cancelled": 3}),
    ],
)
def test_each_end_before_the_engine_is_counted(telemetry: Telemetry, error: BaseException, end: dict[str, int]) -> None:
    with pytest.raises(type(error)):
        call_that_ends(telemetry, error, num_requests=3)
    assert counted(telemetry) == {"received": 3} | end


def test_an_end_before_the_number_is_known_is_one(telemetry: Telemetry) -> None:
    with pytest.raises(KeyError):
        call_that_ends(telemetry, KeyError())
    assert counted(telemetry) == {"received": 1, "failed": 1}


def test_what_the_engine_has_accepted_is_counted_by_the_engine(telemetry: Telemetry) -> None:
    with pytest.raises(KeyError):
        call_that_ends(telemetry, KeyError(), num_requests=2, accepted=True)
    assert counted(telemetry) == {"received": 2}


def test_a_route_that_forgets_its_call_is_noticed(telemetry: Telemetry) -> None:
    with pytest.raises(RuntimeError, match="neither handed to the engine nor refused"), receive_call(telemetry, "x"):
        pass
    assert counted(telemetry) == {"received": 1, "failed": 1}


def test_refusals_name_the_user_and_no_text_of_the_client(telemetry: Telemetry) -> None:
    with pytest.raises(ApiError):
        call_that_ends(telemetry, invalid("n", "secret", logged="wrong"))
    with pytest.raises(ApiError):
        call_that_ends(telemetry, unavailable("it drains", "engine_unavailable", 5))
    events = telemetry.events_since(0)[0]
    assert not [event for event in events if "secret" in event.text]
    assert [(event.kind, event.user) for event in events if event.kind == "rejected"] == [("rejected", "laptop")]


@pytest.fixture
def own(tokenizer: Path, tmp_path: Path) -> Iterator[RunningServer]:
    """A server for this test alone, with one slot and a queue of two."""
    with running(tokenizer, tmp_path, slots=1, queue=2) as server:
        yield server


@pytest.mark.parametrize(
    ("error", "answer", "end"),
    [
        (RequestTooLargeError("too much"), (400, "context_length_exceeded"), {"invalid": 2, "too_long": 2}),
        (EngineUnavailableError("it drains"), (503, "engine_unavailable"), {"rejected": 2}),
        (KeyError("ours"), (500, "internal_error"), {"failed": 2}),
    ],
)
def test_requests_that_the_engine_refuses_are_answered_counted_and_released(
    own: RunningServer,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    answer: tuple[int, str],
    end: dict[str, int],
) -> None:
    def refuse(*_requests: Any) -> None:
        raise error

    monkeypatch.setattr(own.engine, "submit", refuse)
    cancelled: list[str] = []
    monkeypatch.setattr(own.engine, "cancel", cancelled.append)
    refused = own.chat(n=2)
    assert (refused.status_code, refused.json()["error"]["code"]) == answer
    own.idle()
    assert counted(own.engine.telemetry) == {"received": 2} | end
    assert own.output_router.num_open == 0
    assert cancelled == [], "the engine never accepted them"


@pytest.mark.parametrize(("wait", "least", "most"), [(1e6, 30, 32), (None, 1, 3), (0.0, 1, 3), (7.4, 7, 9)])
def test_retry_after_follows_the_wait_and_is_bounded(
    own: RunningServer, monkeypatch: pytest.MonkeyPatch, wait: float | None, least: int, most: int
) -> None:
    own.runner.gate.clear()
    connections = [own.raw_chat("forever", max_tokens=2)]
    own.until(lambda frame: frame.running == 1)
    connections += [own.raw_chat("forever", max_tokens=2) for _ in range(2)]
    own.until(lambda frame: frame.waiting_count == 2)
    monkeypatch.setattr(own.engine, "estimated_wait", lambda: wait)
    seconds = {int(own.chat().headers["retry-after"]) for _ in range(20)}
    assert least <= min(seconds) < max(seconds) <= most, "varied, so that refused clients do not come back together"
    own.runner.gate.set()
    assert own.idle().counters.rejected == 20
    for connection in connections:
        connection.close()


def test_a_context_lowered_while_a_prompt_is_tokenized_refuses_it(
    own: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new context is exactly the length of the prompt, which leaves no token for the answer."""
    encode = own.text.encode_chat

    def lowered_meanwhile(messages: Any) -> list[int]:
        ids = encode(messages)
        own.engine.change({"context": len(ids)}, revision=None, source="test")
        return ids

    monkeypatch.setattr(own.text, "encode_chat", lowered_meanwhile)
    answer = own.chat("alpha beta gamma " * 25, n=2)
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    length = own.frame().limits.context
    assert f"has {length} tokens, but the context of this server is {length}" in answer.json()["error"]["message"]
    own.idle()
    assert counted(own.engine.telemetry) == {"received": 1, "invalid": 1, "too_long": 1}
