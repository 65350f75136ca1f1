"""The bench: fair prompts, honest counts, and a private engine that leaves the user's own alone."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from slotdeck.console.bench.machine import describe_machine, machine_line
from slotdeck.console.bench.run import BenchOptions, bench_engine, bench_url
from slotdeck.console.bench.stage import measure
from slotdeck.console.client.admin import AdminClient
from slotdeck.console.hosting.engine_process import EngineExitedError
from slotdeck.console.hosting.private_engine import NOT_OURS, private_engine
from slotdeck.console.load.client import Endpoint, RequestFailedError, make_client
from slotdeck.console.load.prompts import bench_prompt
from slotdeck.engine.configuration import load_settings
from tests.support.deck import Deck, process_runs
from tests.support.deck_driver import COMMAND
from tests.support.fake_engine import engine_on
from tests.support.fake_openai import FakeOpenAI, Reply, busy, serving


def test_prompts_have_150_words_and_share_no_start() -> None:
    prompts = [bench_prompt(index, seed=1) for index in range(500)]
    assert {len(prompt.split()) for prompt in prompts} == {150}
    assert len({tuple(prompt.split()[:2]) for prompt in prompts}) == 500
    assert len({prompt.split()[0] for prompt in prompts[:100]}) == 100
    assert bench_prompt(7, seed=1) == prompts[7]
    assert bench_prompt(7, seed=2) != prompts[7]


async def test_a_stage_counts_what_was_really_generated() -> None:
    """Answers end early at an end token; the server's usage is the count, not what was asked for."""
    fake = FakeOpenAI(lambda number, _body: Reply(pieces=["a"] * (1 + number % 3)))
    async with serving(fake.app) as url, make_client(url, 3) as client:
        stage = await measure(client, Endpoint(url, "fake"), users=3, requests=2, seed=1, first_prompt=1)
    assert (stage.requests, stage.rejected, stage.errors) == (6, 0, {})
    assert stage.generated_tokens == 12
    assert (stage.ttft_count, stage.itl_count) == (6, 6)
    assert stage.counted_by == "usage"
    assert stage.tokens_per_second == pytest.approx(12 / stage.seconds)
    assert len({body["messages"][0]["content"] for body in fake.bodies}) == 6
    assert {(body["max_tokens"], body["temperature"]) for body in fake.bodies} == {(64, 0)}
    assert len(fake.connections) <= 3


async def test_a_refused_request_is_counted_and_not_sent_again() -> None:
    fake = FakeOpenAI(lambda number, _body: busy() if number in (0, 1) else Reply(usage=False))
    async with serving(fake.app) as url, make_client(url, 2) as client:
        stage = await measure(client, Endpoint(url, "fake"), users=2, requests=2, seed=1, first_prompt=1)
    assert len(fake.bodies) == 4
    assert stage.rejected == 2
    assert stage.generated_tokens == 6
    assert stage.counted_by == "chunks"


async def test_without_any_answer_there_are_no_numbers_and_no_zeros() -> None:
    fake = FakeOpenAI(lambda _number, _body: Reply(status=500, body=None))
    async with serving(fake.app) as url, make_client(url, 1) as client:
        stage = await measure(client, Endpoint(url, "fake"), users=1, requests=1, seed=1, first_prompt=1)
    assert stage.errors == {"http 500": 1}
    assert (stage.tokens_per_second, stage.ttft_p50, stage.itl_max) == (None, None, None)


async def test_a_server_that_cannot_serve_the_warm_up_is_refused() -> None:
    fake = FakeOpenAI(lambda _number, _body: busy())
    async with serving(fake.app) as url:
        with pytest.raises(RequestFailedError, match="the server is full"):
            await bench_url(BenchOptions([1], 1, 1, lambda _text: None), url, None, None)


async def test_the_own_engine_is_measured_on_all_slots_and_on_one(tmp_path: Path) -> None:
    said: list[str] = []
    async with engine_on(tmp_path / "engine.sock") as engine:
        admin = AdminClient(engine.socket)
        frame = engine.frame()
        report = await bench_engine(BenchOptions([1, 3], 2, 1, said.append), admin, frame)
        prompts = [body["messages"][0]["content"] for body in engine.bodies]
    assert engine.slot_changes == [1, 4]
    assert [(stage.users, stage.slots) for stage in report.stages] == [(1, 4), (3, 4), (3, 1)]
    whole, single = report.stages[1], report.stages[2]
    assert whole.tokens_per_second is not None
    assert single.tokens_per_second is not None
    assert report.ratio == pytest.approx(whole.tokens_per_second / single.tokens_per_second)
    assert len(set(prompts)) == len(prompts) == 1 + 2 + 6 + 6
    assert "3 users" in report.as_text()
    assert said[0] == "warming up"


def test_the_private_engine_takes_flags_but_nothing_of_the_user_s_own_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No keys, no port, no socket and no configuration file of the user reach it, and it ends with the bench."""
    (tmp_path / "config.toml").write_text('threads = 1\napi_key = ["laptop=secret"]\n')
    monkeypatch.setattr("slotdeck.console.hosting.engine_process.ENGINE_COMMAND", COMMAND)
    monkeypatch.setenv("SLOTDECK_CONFIG", str(tmp_path / "config.toml"))
    monkeypatch.setenv("SLOTDECK_PORT", "8000")
    monkeypatch.setenv("SLOTDECK_SOCKET", str(tmp_path / "own.sock"))
    with private_engine(load_settings({"slots": 9}), lambda _text: None) as (admin, frame):
        assert frame.engine.pid is not None
        assert process_runs(frame.engine.pid)
        assert frame.limits.slots == 9
        settings = {row["name"]: row["value"] for row in admin.call("GET", "/admin/settings")["settings"]}
        environment = Path(f"/proc/{frame.engine.pid}/environ").read_bytes()
    assert (settings["port"], settings["host"], settings["threads"]) == (0, "127.0.0.1", 1)
    assert settings["socket"] != str(tmp_path / "own.sock")
    assert b"secret" not in environment
    assert not process_runs(frame.engine.pid)
    assert not (tmp_path / "own.sock").exists()


def test_a_sigterm_leaves_no_private_engine_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slotdeck.console.hosting.engine_process.ENGINE_COMMAND", COMMAND)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit), private_engine(load_settings(), lambda _text: None) as (_, frame):
        os.kill(os.getpid(), signal.SIGTERM)
    assert not process_runs(frame.engine.pid)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_private_engine_that_does_not_come_up_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slotdeck.console.hosting.engine_process.ENGINE_COMMAND", COMMAND)
    monkeypatch.setenv("FAKE_ENGINE", "fail 2")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with pytest.raises(EngineExitedError) as caught, private_engine(load_settings(), lambda _text: None):
        pass
    assert caught.value.code == 2
    assert "slotdeck: port 8000 is in use" in caught.value.lines


def test_the_whole_command_on_a_private_engine(deck: Deck) -> None:
    result = deck.without_terminal("bench", "--users", "1,2", "--requests", "1", "--json")
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert [(stage["users"], stage["slots"]) for stage in report["stages"]] == [(1, 20), (2, 20), (2, 1)]
    assert report["ratio_all_slots_to_one"] > 0
    assert report["answer_tokens"] == 64
    assert not (deck.folder / "engine.sock").exists()
    failed = deck.without_terminal("bench", FAKE_ENGINE="fail 2")
    assert failed.returncode == 2
    assert "port 8000 is in use" in failed.stderr


def test_the_machine_is_described() -> None:
    machine = describe_machine()
    assert machine["torch"]
    assert machine["memory_bytes"] > 1 << 28
    assert machine["usable_cores"] >= 1
    assert "GiB RAM" in machine_line(machine)


def test_settings_of_the_own_engine_that_a_private_one_must_not_take_are_settings() -> None:
    assert set(NOT_OURS) <= set(load_settings().model_dump())
