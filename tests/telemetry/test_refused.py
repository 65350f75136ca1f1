"""Clients that send what cannot be served are told of, and never in a flood."""

from __future__ import annotations

import pytest

from slotdeck.engine.telemetry import refused
from slotdeck.engine.telemetry.refused import QUIET_SECONDS, RefusedClients
from slotdeck.engine.telemetry.telemetry import Telemetry

REASON = "'temperature' must be a number between 0 and 2"


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def told(telemetry: Telemetry, cursor: int) -> tuple[list[tuple[str, str]], int]:
    events, cursor = telemetry.events_since(cursor)
    return [(event.kind, event.text) for event in events], cursor


def test_the_first_is_said_at_once_and_the_rest_once_a_minute_for_each_client() -> None:
    clock = Clock()
    telemetry = Telemetry(clock, clock)
    telemetry.count_invalid("phone", REASON)
    said, cursor = told(telemetry, 0)
    assert said == [("invalid", f"phone: a request refused as invalid: {REASON}")]
    for _ in range(12):
        telemetry.count_invalid("phone", REASON)
        telemetry.count_invalid("laptop", REASON)
    said, cursor = told(telemetry, cursor)
    assert said == [("invalid", f"laptop: 12 requests refused as invalid, the last: {REASON}")]
    assert telemetry.counters().invalid == 25
    clock.now += QUIET_SECONDS - 1
    assert told(telemetry, cursor)[0] == []
    clock.now += 1
    said, cursor = told(telemetry, cursor)
    assert said == [("invalid", f"phone: 12 requests refused as invalid, the last: {REASON}")]
    clock.now += 10 * QUIET_SECONDS
    assert told(telemetry, cursor)[0] == []


def test_one_client_in_its_quiet_minute_does_not_silence_another() -> None:
    clock = Clock()
    telemetry = Telemetry(clock, clock)
    telemetry.count_invalid("phone", REASON)
    _, cursor = told(telemetry, 0)
    clock.now += 30
    telemetry.count_invalid("phone", REASON)
    telemetry.count_invalid("laptop", REASON)
    said, cursor = told(telemetry, cursor)
    assert [text.split(":")[0] for _, text in said] == ["laptop"]
    clock.now += 30
    assert [text.split(":")[0] for _, text in told(telemetry, cursor)[0]] == ["phone"]


def test_clients_beyond_those_told_apart_are_only_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refused, "MAX_CLIENTS", 2)
    clock = Clock()
    clients = RefusedClients(clock)
    for user in ("a", "b", "c", "a"):
        clients.add(user, REASON)
    assert [(user, text.split(":")[1].strip()) for user, text in clients.due()] == [
        ("a", "2 requests refused as invalid, the last"), ("b", "a request refused as invalid"),
    ]  # fmt: skip
    clock.now += QUIET_SECONDS
    assert clients.due() == []
    assert clients._clients == {}, "who has been quiet is forgotten"
    clients.add("c", REASON)
    assert [user for user, _ in clients.due()] == ["c"]
