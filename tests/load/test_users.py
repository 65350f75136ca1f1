"""Simulated users: what they say, how long they read, and that nothing a server does stops them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from slotdeck.console.load import Kind
from slotdeck.console.load.client import Endpoint, make_client
from slotdeck.console.load.prompts import NAMES, OPENERS, user_name
from slotdeck.console.load.tally import Tally
from slotdeck.console.load.users import MAX_TRIES, SimulatedUser
from tests.support.fake_openai import FakeOpenAI, Reply, busy, prompt_tokens, serving


class Room:
    """One user in front of a fake server; pauses are recorded instead of slept, and end the talk after ``turns``."""

    def __init__(self, url: str, fake: FakeOpenAI) -> None:
        self.url = url
        self.fake = fake
        self.tally = Tally(1)
        self.pauses: list[float] = []

    async def talk(self, kind: Kind, requests: int, seed: str = "1/laptop", **options: Any) -> None:
        async def pause(seconds: float) -> None:
            self.pauses.append(seconds)
            if len(self.fake.bodies) >= requests:
                raise asyncio.CancelledError

        endpoint = Endpoint(self.url, "fake", context=self.fake.context)
        async with make_client(self.url, 1) as client:
            user = SimulatedUser(client, endpoint, self.tally, kind=kind, seed=seed, pause=pause, **options)
            if kind == "agent":
                while len(self.fake.bodies) < requests:
                    await user.turn()
                return
            with pytest.raises(asyncio.CancelledError):
                await user.run()


@pytest.fixture
async def room() -> AsyncIterator[Room]:
    fake = FakeOpenAI()
    async with serving(fake.app) as url:
        yield Room(url, fake)


async def test_a_chat_user_starts_within_5_s_and_reads_20_to_60_s(room: Room) -> None:
    await room.talk("chat", 6)
    first, *reading = room.pauses
    assert 0 <= first <= 5
    assert reading
    assert all(20 <= seconds <= 60 for seconds in reading)
    assert len(set(reading)) == len(reading)


async def test_an_agent_does_not_pause(room: Room) -> None:
    await room.talk("agent", 5)
    assert room.pauses == []
    assert room.tally.finished == 5


async def test_a_conversation_keeps_its_history_and_asks_for_60_to_250_tokens(room: Room) -> None:
    await room.talk("chat", 3)
    first, second = room.fake.bodies[:2]
    assert first["messages"][0]["content"] in OPENERS
    assert second["messages"][:2] == [*first["messages"], {"role": "assistant", "content": "Hello there."}]
    assert second["messages"][2]["role"] == "user"
    assert all(60 <= body["max_tokens"] <= 250 for body in room.fake.bodies)


async def test_the_same_seed_says_the_same_and_another_does_not(room: Room) -> None:
    for seed in ("1/laptop", "1/laptop", "1/phone"):
        await room.talk("chat", len(room.fake.bodies) + 5, seed=seed)
    bodies = room.fake.bodies
    assert bodies[:5] == bodies[5:10]
    assert bodies[:5] != bodies[10:]


async def test_a_conversation_that_would_not_fit_the_context_starts_over(room: Room) -> None:
    room.fake.context = 400
    await room.talk("chat", 30)
    assert room.tally.finished >= 30
    assert all(prompt_tokens(body) + body["max_tokens"] <= 400 for body in room.fake.bodies)
    assert any(len(body["messages"]) > 1 for body in room.fake.bodies)


async def test_con_13_a_503_waits_for_retry_after_with_jitter_and_not_for_ever(room: Room) -> None:
    """A refused user comes back no sooner than told, spread out, and gives a turn up after a few tries."""
    room.fake.script = lambda _number, _body: busy("4")
    await room.talk("chat", MAX_TRIES * 2)
    waits = room.pauses[1:MAX_TRIES]
    assert len(waits) == MAX_TRIES - 1
    assert all(4 <= seconds <= 6 for seconds in waits)
    assert len(set(waits)) == len(waits)
    assert room.tally.rejected == MAX_TRIES * 2
    assert room.tally.gave_up >= 1
    assert room.tally.errors.total() == 0


async def test_a_503_keeps_the_question(room: Room) -> None:
    room.fake.script = lambda number, _body: busy() if number == 0 else Reply()
    await room.talk("chat", 2)
    assert room.fake.bodies[0] == room.fake.bodies[1]
    assert room.tally.finished == 1


@pytest.mark.parametrize(
    "reply",
    [Reply(status=500, body="no"), Reply(cut=True), Reply(error_event="broken"), Reply(raw=b"data: {\n\n")],
    ids=["500", "cut", "error event", "no JSON"],
)
async def test_an_error_is_counted_slows_the_user_down_and_never_stops_it(room: Room, reply: Reply) -> None:
    room.fake.script = lambda number, _body: reply if number < 3 else Reply()
    await room.talk("chat", 5)
    assert room.tally.errors.total() == 3
    assert room.tally.finished >= 1
    assert room.tally.in_flight == 0
    backoffs = room.pauses[1:4]
    assert backoffs == sorted(backoffs)
    assert min(backoffs) >= 1


async def test_a_refused_length_starts_a_new_conversation_and_asks_for_the_context_again(room: Room) -> None:
    """The admin may lower the context while people talk."""
    too_long = Reply(status=400, body={"error": {"message": "too long", "code": "context_length_exceeded"}})
    room.fake.script = lambda number, _body: too_long if number == 1 else Reply()
    renewed: list[int] = []

    async def renew() -> Endpoint:
        renewed.append(len(room.fake.bodies))
        return Endpoint(room.url, "fake", context=512)

    await room.talk("chat", 3, renew=renew)
    assert renewed == [2]
    assert len(room.fake.bodies[2]["messages"]) == 1
    assert room.tally.errors == {"http 400": 1}


async def test_a_key_that_is_not_known_any_more_is_renewed(room: Room) -> None:
    """Guest keys end with the engine that minted them."""
    room.fake.key = "second"
    endpoint = Endpoint(room.url, "fake", "first")

    async def renew() -> Endpoint:
        return replace(endpoint, api_key="second")

    await room.talk("chat", 2, renew=renew)
    assert room.fake.keys == ["second", "second"]
    assert room.tally.errors == {"http 401": 1}


def test_users_have_everyday_names_that_differ() -> None:
    names = [user_name(index) for index in range(60)]
    assert len(NAMES) == 24
    assert names[:3] == ["laptop", "phone", "tablet"]
    assert len(set(names)) == 60
    assert names[24] == "laptop-2"


def test_a_tally_reads_calmly_before_anything_happened() -> None:
    tally = Tally(5)
    assert "p95 TTFT –  ITL –" in tally.line()
    assert ("errors", "0") in tally.table()
    assert len(tally.line()) < 80


def test_a_tally_says_what_its_end_cut_off_and_what_its_tokens_count() -> None:
    tally = Tally(3, requests=5, finished=1, rejected=1, prompt_tokens=20, generated_tokens=9)
    assert ("requests", "5, 1 answered, 3 cut off at the end") in tally.table()
    assert ("tokens", "9 generated, 20 prompt, in answered requests") in tally.table()


async def test_documents_are_long_need_a_few_words_each_and_shrink_when_they_do_not_fit(room: Room) -> None:
    async def turns(number: int) -> list[dict[str, Any]]:
        async with make_client(room.url, 1) as client:
            user = SimulatedUser(
                client, Endpoint(room.url, "fake", context=2048), room.tally, kind="document", seed="1", opening="Hi: "
            )
            for _ in range(number):
                await user.turn()
        return room.fake.bodies

    bodies = await turns(4)
    texts = [body["messages"][-1]["content"] for body in bodies]
    assert all(len(body["messages"]) == 1 and 16 <= body["max_tokens"] <= 40 for body in bodies)
    assert all(text.startswith("Hi: ") and 2500 < len(text) < 6000 for text in texts)
    assert len(set(texts)) == 4
    room.fake.script = lambda _number, _body: Reply(status=400, body={"error": {"message": "too long"}})
    del bodies[:]
    await turns(3)
    lengths = [len(body["messages"][-1]["content"]) for body in bodies]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[2] < 1700


async def test_people_may_be_met_at_any_moment_of_reading(room: Room) -> None:
    starts = []
    for seed in "abcdef":
        room.pauses.clear()
        room.fake.bodies.clear()
        await room.talk("chat", 1, seed=seed, midway=True)
        starts.append(room.pauses[0])
    assert all(0 <= start <= 60 for start in starts)
    assert max(starts) > 10
