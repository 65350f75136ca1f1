"""Clients that send what cannot be served are told of, and never in a flood."""

from __future__ import annotations

from slotdeck.engine.telemetry.refused import QUIET_SECONDS
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
