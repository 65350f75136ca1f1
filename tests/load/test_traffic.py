"""The load as a whole: names, targets, and how it ends."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pexpect
import pytest

from slotdeck.console.load import traffic
from slotdeck.console.load.client import RequestFailedError, UnreachableError
from slotdeck.console.load.tally import Tally
from slotdeck.console.load.traffic import Target, claim_names, run_traffic
from tests.support.fake_engine import engine_on
from tests.support.fake_openai import FakeOpenAI, Reply, serving, until

LOAD = [sys.executable, "-m", "slotdeck.console.load"]


def on_url(url: str) -> Target:
    return Target(url=url, api_key=None, model=None, socket=None)


def on_socket(socket: Path) -> Target:
    return Target(url=None, api_key=None, model=None, socket=socket)


async def run(target: Target, **options: object) -> Tally:
    defaults = {"users": 3, "kind": "agent", "seed": 1, "duration": None, "on_tick": lambda _tally: None, "tick": 0.05}
    return await run_traffic(target, **(defaults | options))  # type: ignore[arg-type]


async def test_it_ends_when_time_is_up_and_has_counted() -> None:
    fake = FakeOpenAI()
    async with serving(fake.app) as url:
        tally = await run(on_url(url), duration=0.5)
    assert tally.finished >= 3
    assert tally.generated_tokens == tally.finished * 3
    assert len(tally.gaps) >= tally.finished * 2
    assert tally.errors.total() == 0
    assert ("errors", "0") in tally.table()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_ends_it_and_closes_every_stream(number: signal.Signals) -> None:
    """Streams that are cut off free their slots at the server."""
    fake = FakeOpenAI(lambda _number, _body: Reply(hold=asyncio.Event()))
    async with serving(fake.app) as url:
        task = asyncio.create_task(run(on_url(url)))
        await until(lambda: fake.open_streams == 3)
        os.kill(os.getpid(), number)
        tally = await task
        await until(lambda: fake.open_streams == 0)
    assert tally.requests == 3
    assert not tally.gone


async def test_a_server_that_is_gone_for_good_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic, "GIVE_UP_SECONDS", 0.2)
    fake = FakeOpenAI()
    async with serving(fake.app) as url:
        task = asyncio.create_task(run(on_url(url)))
        await until(lambda: len(fake.bodies) > 3)
    tally = await task
    assert tally.gone
    assert tally.errors["connection"] + tally.errors["stream cut"] >= 1


async def test_nobody_there_at_the_start_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(UnreachableError, match="`slotdeck` starts one"):
        await run(on_socket(tmp_path / "engine.sock"))
    with pytest.raises(UnreachableError, match="no server answers"):
        await run(on_url("http://127.0.0.1:9"))


async def test_users_of_the_own_engine_have_a_key_each(tmp_path: Path) -> None:
    async with engine_on(tmp_path / "engine.sock") as engine:
        await run(on_socket(engine.socket), duration=0.5)
        assert set(engine.keys) == {engine.guests[name] for name in ("~laptop", "~phone", "~tablet")}


async def test_a_refusal_to_mint_keys_says_why(tmp_path: Path) -> None:
    async with engine_on(tmp_path / "engine.sock") as engine:
        engine.most_guests = 2
        with pytest.raises(RequestFailedError, match="at most 2 guest labels"):
            await run(on_socket(engine.socket))


async def test_users_find_a_restarted_engine_again(tmp_path: Path) -> None:
    """Port and guest keys are new after a restart; the socket is the same."""
    socket = tmp_path / "engine.sock"
    async with engine_on(socket) as first:
        task = asyncio.create_task(run(on_socket(socket)))
        await until(lambda: len(first.bodies) > 3)
    async with engine_on(socket) as second:
        await until(lambda: len(second.bodies) > 3)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_two_loads_on_one_engine_share_no_name(tmp_path: Path) -> None:
    """A second key for a label would end the first load's key."""
    socket = tmp_path / "engine.sock"
    script = (
        "import sys, pathlib; from slotdeck.console.load.traffic import claim_names;"
        "names, claim = claim_names(pathlib.Path(sys.argv[1]), 2); print(names, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(socket)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline().strip() == "['~laptop', '~phone']"
        names, claim = claim_names(socket, 3)
        claim.close()
        assert names == ["~tablet", "~office", "~kitchen"]
        other.communicate("")
    names, claim = claim_names(socket, 3)
    claim.close()
    assert names == ["~laptop", "~phone", "~tablet"]


async def test_the_background_load_is_silent_and_ends_on_sigterm(tmp_path: Path) -> None:
    async with engine_on(tmp_path / "engine.sock") as engine:
        process = await asyncio.create_subprocess_exec(
            *LOAD, "--users", "2", "--kind", "agent", "--socket", str(engine.socket),
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        await until(lambda: len(engine.bodies) > 2)
        process.terminate()
        output, errors = await process.communicate()
    assert (process.returncode, output, errors) == (0, b"", b"")


async def test_the_background_load_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    """The console may be killed; its simulated users must not stay behind."""
    async with engine_on(tmp_path / "engine.sock") as engine:
        script = (
            "import os, subprocess, sys;"
            f"subprocess.Popen({LOAD!r} + sys.argv[1:] + ['--parent', str(os.getpid())]); sys.stdin.read()"
        )
        parent = await asyncio.create_subprocess_exec(
            sys.executable, "-c", script, "--users", "2", "--kind", "agent", "--socket", str(engine.socket),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        await until(lambda: len(engine.bodies) > 2)
        parent.kill()
        assert parent.stdout is not None
        await parent.stdout.read()  # The pipe closes only when the load, which inherited it, has ended too.


async def test_the_background_load_ends_if_that_process_died_before_it_had_started(tmp_path: Path) -> None:
    dead = await asyncio.create_subprocess_exec("true")
    await dead.wait()
    async with engine_on(tmp_path / "engine.sock") as engine:
        process = await asyncio.create_subprocess_exec(*LOAD, "--socket", str(engine.socket), "--parent", str(dead.pid))
        assert await process.wait() == 0


async def run_command(*arguments: str) -> tuple[int, str, str]:
    code = "import sys; from slotdeck.console.cli.main import run; sys.argv[0] = 'slotdeck'; run()"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    output, errors = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode(), errors.decode()


async def test_the_command_prints_its_result_as_plain_lines() -> None:
    fake = FakeOpenAI()
    async with serving(fake.app) as url:
        code, output, errors = await run_command(
            *("load", "--url", url, "--users", "2", "--kind", "agent", "--duration", "1")
        )
    assert (code, errors) == (0, "")
    rows = dict(line.split("  ", 1) for line in output.splitlines())
    sent = int(rows["requests"].split(",")[0])
    assert len(fake.bodies) <= sent <= len(fake.bodies) + 2  # Those cut off at the end may not have arrived.
    assert "\x1b" not in output
    assert "p95" in output


async def test_on_a_terminal_there_is_one_live_line_and_ctrl_c_ends_with_the_table() -> None:
    fake = FakeOpenAI()

    def watch(url: str) -> tuple[str, int | None]:
        code = "import sys; from slotdeck.console.cli.main import run; sys.argv[0] = 'slotdeck'; run()"
        arguments = ["-c", code, "load", "--url", url, "--users", "2", "--kind", "agent"]
        terminal = pexpect.spawn(sys.executable, arguments, encoding="utf-8", timeout=30, dimensions=(24, 80))
        terminal.expect(r"in flight \d/2  answered \d+  503 0  errors 0  p95 TTFT [\d.]+ m?s  ITL \d+ ms")
        terminal.sendintr()
        rest = str(terminal.read())
        terminal.wait()
        return rest, terminal.exitstatus

    async with serving(fake.app) as url:
        rest, code = await asyncio.to_thread(watch, url)
        await until(lambda: fake.open_streams == 0)
    assert code == 0
    assert "requests" in rest
    assert "TTFT" in rest
    assert "Traceback" not in rest


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["load", "--api-key", "k"], 2, "--api-key needs --url"),
        (["load", "--url", "http://x", "--socket", "/s"], 2, "only one of --url"),
        (["load", "--url", "http://127.0.0.1:9"], 1, "no server answers"),
        (["--slots", "3", "load"], 2, "--slots does not apply"),
        (["bench", "--users", "two"], 2, "list of numbers"),
        (["bench", "--url", "http://127.0.0.1:9", "--slots", "3"], 2, "leave it out with --url"),
        (["bench", "--url", "http://127.0.0.1:9", "--profile"], 2, "leave it out with --url"),
        (["bench", "--url", "http://127.0.0.1:9"], 1, "no server answers"),
    ],
)
async def test_wrong_use_gets_one_line_and_a_documented_code(arguments: list[str], code: int, words: str) -> None:
    result, output, errors = await run_command(*arguments)
    assert result == code
    assert output == ""
    assert words in errors
    assert errors.count("\n") == 1


async def test_bench_measures_a_url_and_writes_json(tmp_path: Path) -> None:
    fake = FakeOpenAI()
    file = tmp_path / "bench.json"
    async with serving(fake.app) as url:
        code, output, _ = await run_command(*("bench", "--url", url, "--users", "1,3", "--json", "--output", str(file)))
    assert code == 0
    report = json.loads(output)
    assert json.loads(file.read_text()) == report
    assert [stage["requests"] for stage in report["stages"]] == [2, 6]
    assert [stage["generated_tokens"] for stage in report["stages"]] == [6, 18]
    assert report["machine"]["logical_cores"] >= 1
    assert report["server"]["model"] == "fake"
