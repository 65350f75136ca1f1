"""The probe against servers that queue, run requests together, cut prompts, refuse, or speak Ollama's API alone."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from starlette.applications import Starlette
from typer.testing import CliRunner

from slotdeck.console.cli.main import app
from slotdeck.console.load.client import RequestFailedError, UnreachableError
from slotdeck.console.probe.report import as_text, found_wrong, measured
from slotdeck.console.probe.run import Limits, ProbeReport, probe
from tests.probe.servers import BufferingServer, NativeOllama, SlottedServer
from tests.support.fake_openai import FakeOpenAI, serving
from tests.support.stub_server import running

QUICK = Limits(at_once=5, longest=0)
TOGETHER = ("batched", "sharing bandwidth")
"""Which of the two it is, is a matter of speed, and of what else the machine does: test_judge has it."""


@pytest.fixture(autouse=True)
def short_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FIRST_TOKENS", "MAX_TOKENS"):
        monkeypatch.setattr(f"slotdeck.console.probe.run.{name}", 24)


async def probed(server: FakeOpenAI, limits: Limits = QUICK) -> ProbeReport:
    said: list[str] = []
    async with serving(server.app) as url:
        report = await probe(url, None, None, limits, said.append)
    assert said
    assert report.requests == len(server.bodies) <= limits.requests
    return report


async def test_one_slot_queues() -> None:
    report = await probed(SlottedServer(1))
    assert report.pair is not None
    assert report.pair.verdict == "queued"
    assert report.slots is not None
    assert (report.slots.at_once, report.slots.later) == (1, 4)
    assert found_wrong(report)
    text = as_text(report)
    assert "QUEUED: the second answer began only when the first was done" in text
    assert "1 in effect" in text


async def test_slots_and_refusals_are_counted() -> None:
    report = await probed(SlottedServer(3, queue=1))
    assert report.pair is not None
    assert report.pair.verdict in TOGETHER
    assert report.slots is not None
    assert (report.slots.at_once, report.slots.answered, report.slots.refused) == (3, 4, 1)
    assert not found_wrong(report)
    assert "1 refused with 503" in as_text(report)


async def test_texts_in_one_piece_are_said() -> None:
    report = await probed(BufferingServer(1))
    assert report.pair is not None
    assert (report.pair.verdict, report.pair.buffered) == ("queued", True)
    assert "texts arrive in one piece" in as_text(report)


@pytest.mark.parametrize("usage", [True, False], ids=["counted", "by the code word"])
async def test_a_prompt_that_is_cut_is_found(usage: bool) -> None:
    server = SlottedServer(2, kept=700, usage=usage)
    report = await probed(server, Limits(at_once=2, longest=2048))
    assert report.cut is not None
    assert report.cut.verdict == "cut silently"
    assert report.cut.kept == (700 if usage else None)
    assert found_wrong(report)
    assert "CUT SILENTLY" in as_text(report)


async def test_a_prompt_that_is_refused_is_not_called_cut() -> None:
    report = await probed(SlottedServer(2, most=1500), Limits(at_once=2, longest=4096))
    assert report.cut is not None
    assert report.cut.verdict == "refused"
    assert [prompt.status for prompt in report.cut.prompts] == [None, 400]
    assert not found_wrong(report)


async def test_what_is_read_whole_is_said_with_how_far_it_was_looked() -> None:
    server = SlottedServer(2)
    server.context = None
    report = await probed(server, Limits(at_once=2, longest=2048))
    assert report.cut is not None
    assert report.cut.verdict == "read whole"
    last = report.cut.prompts[-1]
    assert last.counted is not None
    assert abs(last.counted - last.expected) <= 2
    assert "read completely, up to" in as_text(report)


async def test_without_counts_and_without_memory_it_stays_unclear() -> None:
    server = SlottedServer(2, kept=700, usage=False)
    server.remembers = False
    report = await probed(server, Limits(at_once=2, longest=2048))
    assert report.cut is not None
    assert report.cut.verdict == "unclear"


async def test_ollama_without_v1_is_asked_in_its_own_words() -> None:
    ollama = NativeOllama(1, kept=1500)
    async with serving(Starlette(routes=ollama.routes())) as url:
        report = await probe(url, None, None, Limits(at_once=3, longest=4096), lambda _: None)
        with pytest.raises(RequestFailedError, match="has tiny:latest, not other"):
            await probe(url, None, "other", QUICK, lambda _: None)
    assert (report.api, report.server, report.model) == ("ollama", "ollama", "tiny:latest")
    assert report.pair is not None
    assert report.pair.verdict == "queued"
    assert report.cut is not None
    assert (report.cut.verdict, report.cut.told, report.cut.kept) == ("cut silently", 1500, 1500)
    assert "OLLAMA_NUM_PARALLEL" in as_text(report)
    assert "OLLAMA_CONTEXT_LENGTH" in as_text(report)


async def test_time_is_bounded_and_what_was_found_until_then_is_kept() -> None:
    server = SlottedServer(1)
    await server.slots.acquire()  # it answers nobody
    report = await probed(server, Limits(at_once=2, longest=0, seconds=0.2))
    assert (report.pair, report.slots, measured(report)) == (None, None, False)
    assert "the probe stopped after" in report.notes[0]
    assert "not measured" in as_text(report)


async def test_nobody_there_is_an_error() -> None:
    with pytest.raises(UnreachableError, match="no server answers"):
        await probe("http://127.0.0.1:9", None, None, QUICK, lambda _: None)


@pytest.mark.parametrize(("mode", "code", "words"), [("serial", 5, "QUEUED"), ("continuous", 0, "BATCHED")])
def test_the_command_against_slotdeck_itself(tokenizer: Path, tmp_path: Path, mode: str, code: int, words: str) -> None:
    with running(tokenizer, tmp_path, slots=3, context=4096) as server:
        server.runner.pace = 0.01
        assert server.admin.patch("/admin/settings", json={"changes": {"mode": mode}}).status_code == 200
        arguments = ["probe", server.url, "--at-once", "4", "--longest", "8192"]
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == code, result.output
        assert "at most" in result.stderr.splitlines()[0]
        assert ("QUEUED" in result.stdout) == (mode == "serial")
        assert f"{1 if mode == 'serial' else 3} in effect: of 4 sent at once" in result.stdout
        assert "refused, not cut: HTTP 400" in result.stdout
        assert "the server reports a context of 4096 tokens" in result.stdout
        server.idle()


async def test_the_command_prints_json() -> None:
    async with serving(SlottedServer(2).app) as url:
        arguments = ["probe", url, "--at-once", "2", "--longest", "0", "--json"]
        result = await asyncio.to_thread(CliRunner().invoke, app, arguments)
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["pair"]["verdict"] in TOGETHER
    assert (document["slots"]["at_once"], document["cut"]) == (2, None)
