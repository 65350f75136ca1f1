"""A request as the admin API tells it: from the log of its steps, or from the queue of the newest frame."""

from __future__ import annotations

from slotdeck.engine.telemetry.frame import Frame, PoolInfo, SlotInfo, WaitingInfo
from slotdeck.engine.telemetry.requests.detail import RequestDetail
from slotdeck.engine.telemetry.requests.lookup import find_request
from tests.support.doctor_frames import START, frame
from tests.support.observed_run import Run


def found(run: Run, seen: Frame, name: str) -> RequestDetail:
    detail = find_request(run.telemetry.requests, seen, name)
    assert detail is not None
    return detail


def test_one_that_waits_is_known_from_the_queue() -> None:
    queue = (
        WaitingInfo(request_id="a", user="ann", prompt_tokens=5, waited=1.0, estimate=2.0),
        WaitingInfo(request_id="b", user="bob", prompt_tokens=7, waited=4.0, estimate=9.0),
        WaitingInfo(request_id="c"),
    )
    run, seen = Run(), frame(waiting=queue, slots=())
    detail = found(run, seen, "b")
    assert (detail.state, detail.user, detail.position, detail.prompt_tokens) == ("waiting", "bob", 2, 7)
    assert (detail.age, detail.queue_wait, detail.estimate, detail.arrived) == (4.0, 4.0, 9.0, START - 4.0)
    assert detail.why == "Waiting for 4.0 s, number 2 in the queue, likely to start in about 9.0 s."
    bare = found(run, seen, "c")
    assert (bare.position, bare.age, bare.arrived) == (3, None, None)
    assert find_request(run.telemetry.requests, seen, "d") is None


def test_one_that_runs_has_the_state_of_its_slot_and_the_room_that_it_holds() -> None:
    run = Run()
    run.submit("a", prompt=4, output=10)
    run.step(2)
    slots = (
        SlotInfo(slot=0, state="decode", request_id="other", blocks=9),
        SlotInfo(slot=1, state="swapped", request_id="a", blocks=3, cached_tokens=48),
    )
    detail = found(run, frame(slots=slots, pool=PoolInfo(block_size=16)), "a")
    assert (detail.state, detail.kv_tokens, detail.cached_tokens) == ("swapped", 48, 48)
    assert detail.output_tokens == 2
    assert detail.why.startswith("Nothing held it up: first token after")
    for block_size, blocks in ((None, 3), (16, None)):
        slot = SlotInfo(slot=1, state="decode", request_id="a", blocks=blocks)
        assert found(run, frame(slots=(slot,), pool=PoolInfo(block_size=block_size)), "a").kv_tokens is None


def test_one_that_has_ended_keeps_the_state_of_its_end() -> None:
    run = Run()
    run.submit("a", prompt=4, output=3)
    run.finish()
    assert found(run, frame(slots=(SlotInfo(slot=0),)), "a").state == "finished"
