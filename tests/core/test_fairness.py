"""Who goes first: users share by tokens, and nobody waits for ever."""

from __future__ import annotations

import pytest

from slotdeck.engine.core.admission import MAX_BYPASSES
from slotdeck.engine.core.events import QueueFullError, UserQueueFullError
from slotdeck.engine.core.request import State
from tests.support.core_engine import Engine


def test_sch_05_one_user_s_thirty_jobs_do_not_make_another_wait_for_all() -> None:
    engine = Engine(slots=1, queue=64)
    jobs = [engine.add(8, output=2, user="A") for _ in range(30)]
    engine.step()
    single = engine.add(8, output=2, user="B")
    while single.state is not State.FINISHED:
        engine.step()
    assert sum(job.state is State.FINISHED for job in jobs) <= 2


def test_users_share_by_tokens_not_by_requests() -> None:
    engine = Engine(slots=1, queue=64, context=512)
    for _ in range(10):
        engine.add(100, output=20, user="long")
    for _ in range(60):
        engine.add(10, output=2, user="short") if len(engine.scheduler.waiting) < 60 else None
    served = {"long": 0, "short": 0}
    for _ in range(400):
        plan = engine.step()
        for row in plan.rows:
            served[row.request.user] += row.count
        if len({request.user for request in engine.scheduler.requests()}) < 2:
            break
    assert 0.5 < served["long"] / served["short"] < 2


def test_somebody_who_was_away_has_saved_up_no_credit() -> None:
    engine = Engine(slots=1, queue=64)
    for _ in range(20):
        engine.add(8, output=4, user="A")
    for _ in range(40):
        engine.step()
    order = [engine.add(8, output=4, user="B") for _ in range(10)]
    engine.run_to_end()
    ends = sorted(order, key=lambda request: request.timeline.ended or 0)
    assert ends == order


def test_nobody_waits_for_ever_behind_users_who_keep_coming() -> None:
    """Each newcomer has had nothing yet; who has had much must still come to their turn."""
    engine = Engine(slots=1, queue=8)
    engine.add(100, output=100, user="old")
    while engine.scheduler.has_work:
        engine.step()
    old = engine.add(10, output=2, user="old")
    newcomers = 0
    while old.state is State.WAITING:
        while len(engine.scheduler.waiting) < 4:
            newcomers += 1
            engine.add(10, output=10, user=f"new {newcomers}")
        engine.step()
        assert newcomers < 100
    assert newcomers > 4, "what somebody had counts"


def test_run_07_users_who_are_gone_are_forgotten() -> None:
    engine = Engine(slots=3, queue=8)
    for number in range(3000):
        engine.add(20, output=3, user=f"user {number}")
        while len(engine.scheduler.waiting) > 4:
            engine.step()
    engine.run_to_end()
    assert len(engine.scheduler.waiting._times) < 2000
    assert engine.scheduler.waiting.num_in_flight == 0


def test_a_head_that_cannot_be_placed_is_passed_exactly_as_often_as_allowed_and_then_by_nobody() -> None:
    """The eight small requests would all fit. The fifth of them may not pass the large one any more."""
    engine = Engine(blocks=40, slots=16, context=640, queue=32)
    engine.add(300, output=60)
    engine.step()
    large = engine.add(500, output=60)
    small = [engine.add(4, output=40) for _ in range(8)]
    engine.step()
    assert large.state is State.WAITING
    admitted = [request.state is State.RUNNING for request in small]
    assert admitted == [True] * MAX_BYPASSES + [False] * (8 - MAX_BYPASSES)
    assert large.bypass_count == MAX_BYPASSES
    engine.run_to_end()
    assert large.state is State.FINISHED
    assert large.admission == 1 + MAX_BYPASSES, "nobody else entered before it"


@pytest.mark.parametrize(("queue", "queue_share", "places"), [(10, 50, 5), (10, 100, 10), (3, 50, 1), (1, 1, 1)])
def test_one_user_fills_their_share_of_the_queue_and_others_still_get_in(
    queue: int, queue_share: int, places: int
) -> None:
    engine = Engine(slots=1, queue=queue, queue_share=queue_share)
    engine.add(8, user="A")
    engine.step()
    for _ in range(places):
        engine.add(8, user="A")
    refusal = QueueFullError if places == queue else UserQueueFullError
    with pytest.raises(refusal) as caught:
        engine.add(8, user="A")
    assert type(caught.value) is refusal
    assert (caught.value.waiting, caught.value.depth) == (places, places)
    assert len(engine.scheduler.waiting) == places
    if places < queue:
        assert f"one user may have {places}" in str(caught.value)
        engine.add(8, user="B")
        engine.change(queue_share=100)
        engine.add(8, user="A")
    engine.run_to_end()


def test_nobody_waits_in_a_queue_of_no_places_whatever_the_share() -> None:
    engine = Engine(slots=1, queue=0, queue_share=50)
    engine.add(8, user="A")
    engine.step()
    with pytest.raises(QueueFullError, match="nobody may wait"):
        engine.add(8, user="B")


def test_a_share_counts_only_requests_that_really_wait() -> None:
    engine = Engine(slots=4, queue=4, queue_share=25)
    for _ in range(5):  # four of them enter in the next step
        engine.add(8, user="A")
    with pytest.raises(UserQueueFullError, match="1 of your requests are waiting"):
        engine.add(8, user="A")
