"""The admin API on its private socket, and how the process starts, refuses to start, drains and is forced to stop."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from slotdeck.engine.server.listeners import ListenError, open_listeners
from slotdeck.engine.settings import SETTINGS, StartSettings
from slotdeck.engine.telemetry.frame import Frame, LimitInfo
from slotdeck.engine.telemetry.requests.detail import RequestDetail
from slotdeck.engine.telemetry.step_log import read_samples
from slotdeck.engine.telemetry.step_profile import Profile
from tests.support.real_engine import RealEngine
from tests.support.stub_server import MODEL, RunningServer, running


def test_frame_stream_starts_at_once_and_counts(server: RunningServer) -> None:
    with server.admin.stream("GET", "/admin/stream?rate=10") as response:
        assert response.headers["content-type"] == "application/x-ndjson"
        lines = response.iter_lines()
        frames = [Frame.model_validate_json(next(lines)) for _ in range(3)]
    assert [frame.sequence for frame in frames] == [1, 2, 3]
    assert len({frame.boot_id for frame in frames}) == 1
    assert frames[0].limits.slots == 4


def test_the_last_minutes_have_one_frame_per_second(server: RunningServer) -> None:
    """A console that attaches later reads them. The first second is there at once."""
    answer = server.admin.get("/admin/past")
    assert answer.headers["content-type"] == "application/x-ndjson"
    told = [Frame.model_validate_json(line) for line in answer.content.splitlines()]
    assert told
    assert {frame.boot_id for frame in told} == {server.frame().boot_id}
    assert all(later.time - earlier.time > 0.9 for earlier, later in pairwise(told))


def test_the_profile_counts_steps_and_their_parts(server: RunningServer) -> None:
    before = Profile.model_validate_json(server.admin.get("/admin/profile").content)
    server.chat("say: hello there")
    spent = Profile.model_validate_json(server.admin.get("/admin/profile").content).since(before)
    assert spent.steps >= spent.tokens > 1
    assert set(spent.parts) == {"plan", "commit", "hand_over"}  # the scripted runner measures no parts of its own
    assert 0 < sum(spent.parts.values()) <= spent.wall
    assert 0 < spent.server_cpu <= spent.process_cpu


def test_frame_stream_carries_each_event_once(server: RunningServer) -> None:
    with server.admin.stream("GET", "/admin/stream?rate=10") as response:
        lines = response.iter_lines()
        next(lines)
        server.chat("say: hello")
        kinds: list[str] = []
        while "finished" not in kinds:
            kinds += [event.kind for event in Frame.model_validate_json(next(lines)).events]
        kinds += [event.kind for event in Frame.model_validate_json(next(lines)).events]
    assert kinds == ["admitted", "first_token", "finished"]


def test_frame_stream_resumes_after_the_last_event_that_was_seen(server: RunningServer) -> None:
    """A console that lost its connection misses no event."""

    def first(query: str) -> Frame:
        with server.admin.stream("GET", f"/admin/stream?rate=10{query}") as response:
            return Frame.model_validate_json(next(response.iter_lines()))

    seen = first("")
    assert seen.event_cursor is not None
    changed = server.admin.patch("/admin/settings", json={"changes": {"slots": 3}, "source": "console"})
    assert changed.status_code == 200
    where = f"&events_after={seen.event_cursor}"
    again = first(f"&boot_id={seen.boot_id}{where}")
    assert [event.kind for event in again.events] == ["setting_changed"]
    assert again.event_cursor == seen.event_cursor + 1
    assert first(f"&boot_id={seen.boot_id}&events_after={again.event_cursor}").events == ()
    assert first(f"&boot_id={seen.boot_id}&events_after=999999").events == ()
    assert first(f"&boot_id=another{where}").events == ()  # the cursor is of an engine that is gone
    assert first(where).events == ()
    refused = server.admin.get("/admin/stream?events_after=-1")
    assert (refused.status_code, refused.json()["error"]["param"]) == (422, "events_after")


@pytest.fixture
def unrefused(tokenizer: Path, tmp_path: Path) -> Iterator[RunningServer]:
    """A server for this test alone, since a server logs refusals of one client only once a minute."""
    with running(tokenizer, tmp_path) as server:
        yield server


def test_invalid_requests_are_counted_and_logged_without_text_of_the_client(unrefused: RunningServer) -> None:
    with unrefused.admin.stream("GET", "/admin/stream?rate=10") as response:
        lines = response.iter_lines()
        next(lines)
        assert unrefused.chat("secret-text", temperature=99).status_code == 400
        events: list[str] = []
        while not events:
            events += [event.text for event in Frame.model_validate_json(next(lines)).events]
    assert len(events) == 1
    assert "a request refused as invalid: 'temperature' must be" in events[0]
    assert "secret-text" not in events[0]
    assert unrefused.frame().counters.invalid == 1


def test_the_log_of_a_refusal_never_quotes_the_client(unrefused: RunningServer) -> None:
    with unrefused.admin.stream("GET", "/admin/stream?rate=10") as response:
        lines = response.iter_lines()
        next(lines)
        refused = unrefused.chat([{"type": "secret-type", "text": "x"}])
        assert "secret-type" in refused.json()["error"]["message"]  # the client that sent it may read it
        events: list[str] = []
        while not events:
            events += [event.text for event in Frame.model_validate_json(next(lines)).events]
    assert "'messages[0].content[0]' is not text" in events[0]
    assert "secret" not in events[0]


@pytest.mark.parametrize("rate", ["0", "0.1", "11", "x", "nan", "inf"])
def test_frame_stream_rate_is_checked(server: RunningServer, rate: str) -> None:
    response = server.admin.get(f"/admin/stream?rate={rate}")
    assert response.status_code == 422
    assert response.json()["error"]["param"] == "rate"


def test_settings_table(tokenizer: Path, tmp_path: Path) -> None:
    with running(tokenizer, tmp_path, api_key=["a=s3cret"]) as server:
        document = server.admin.get("/admin/settings").json()
        rows = {row["name"]: row for row in document["settings"]}
        assert list(rows) == list(SETTINGS)
        assert set(rows["slots"]) == {"name", "value", "unit", "live", "minimum", "maximum", "help"}
        assert rows["slots"]["value"] == 4
        assert rows["slots"]["live"]
        assert rows["heartbeat"]["value"] == 10.0
        assert "s3cret" not in json.dumps(document)


def test_a_change_returns_the_limits_in_force(tokenizer: Path, tmp_path: Path) -> None:
    with running(tokenizer, tmp_path) as server:
        response = server.admin.patch(
            "/admin/settings", json={"changes": {"slots": 8, "queue": 2}, "revision": 0, "source": "console"}
        )
        limits = LimitInfo.model_validate(response.json())
        assert (limits.slots, limits.queue) == (8, 2)
        assert limits.revision > 0
        stale = server.admin.patch("/admin/settings", json={"changes": {"slots": 2}, "revision": 0})
        assert stale.status_code == 409
        assert stale.json()["error"]["code"] == "revision_conflict"
        assert server.frame().limits == limits
        lowered = server.admin.patch("/admin/settings", json={"changes": {"context": 64}})
        assert lowered.status_code == 200
        error = server.chat("alpha beta gamma " * 20).json()["error"]
        assert error["code"] == "context_length_exceeded"
        assert "64" in error["message"]
        assert server.client.get("/v1/models").json()["data"][0]["context_length"] == 64


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"changes": {"slots": 0}}, "slots"),
        ({"changes": {"context": 100_000}}, "context"),
        ({"changes": {"port": 1}}, "port"),
        ({"changes": {"nothing": 1}}, "nothing"),
        ({"changes": {"slots": "8"}}, "slots"),
        ({"changes": {"slots": True}}, "slots"),
        ({"changes": {}}, "changes"),
        ({"changes": [1]}, "changes"),
        ({}, "changes"),
        ({"changes": {"slots": 5}, "revision": "1"}, "revision"),
        ({"changes": {"slots": 5}, "source": ""}, "source"),
        ({"changes": {"slots": 5}, "source": "a\nb"}, "source"),
    ],
)
def test_an_invalid_change_is_refused_as_a_whole_with_a_reason(server: RunningServer, body: Any, param: str) -> None:
    before = server.frame().limits
    response = server.admin.patch("/admin/settings", json=body)
    assert response.status_code == 422
    error = response.json()["error"]
    assert error["param"] == param
    assert error["message"]
    assert server.frame().limits == before


def test_admin_routes_are_not_on_tcp(server: RunningServer) -> None:
    for path in ("/admin/frame", "/admin/settings", "/admin/stream"):
        assert server.client.get(path).status_code == 404
    assert server.client.post("/admin/shutdown").status_code == 404
    assert server.admin.get("/v1/models").status_code == 404


def test_admin_errors(server: RunningServer) -> None:
    assert server.admin.patch("/admin/settings", content=b"{").status_code == 400
    assert server.admin.post("/admin/requests/none/cancel").status_code == 404
    assert server.admin.post("/admin/shutdown", json={"force": "no"}).status_code == 422
    assert server.admin.delete("/admin/settings").status_code == 405


def test_request_detail_while_it_waits_while_it_runs_and_after_its_end(tokenizer: Path, tmp_path: Path) -> None:
    def detail(request_id: str | None) -> RequestDetail:
        response = server.admin.get(f"/admin/requests/{request_id}")
        assert response.status_code == 200
        assert "secret" not in response.text
        return RequestDetail.model_validate_json(response.text)

    with running(tokenizer, tmp_path, slots=1) as server:
        server.runner.gate.clear()
        with server.raw_chat("forever, my secret", stream=True):
            running_id = server.until(lambda frame: frame.running == 1).slots[0].request_id
            assert detail(running_id).state == "prefill"
            with server.raw_chat("forever, another secret"):
                frame = server.until(lambda frame: len(frame.waiting) == 1)
                waits = detail(frame.waiting[0].request_id)
                assert (waits.state, waits.position) == ("waiting", 1)
                assert "number 1 in the queue" in waits.why
                server.runner.gate.set()
                server.until(lambda frame: (frame.slots[0].output_tokens or 0) > 5)
                runs = detail(running_id)
                assert runs.state == "decode"
                assert len(runs.gaps) == len(runs.gap_causes) > 0
                assert runs.kv_tokens
            server.until(lambda frame: not frame.waiting)
            assert "Never started" in detail(waits.request_id).why
        server.until(lambda frame: frame.running == 0)
        ended = detail(running_id)
        assert ended.state == "cancelled"
        assert sum(chunk.tokens for chunk in ended.chunks) == ended.prompt_tokens
        assert ended.why
        assert server.admin.get("/admin/requests/none").status_code == 404


def test_the_socket_is_private(server: RunningServer) -> None:
    path = server.settings.socket
    assert path is not None
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_default_folder_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with open_listeners(StartSettings(port=0)) as listeners:
        assert listeners.admin_path.is_relative_to(tmp_path)
        assert stat.S_IMODE(listeners.admin_path.parent.stat().st_mode) == 0o700


def test_port_in_use_is_one_clear_line(server: RunningServer, tmp_path: Path) -> None:
    with pytest.raises(ListenError, match=f"port {server.port} .* in use .*--port") as caught:
        open_listeners(StartSettings(port=server.port, socket=tmp_path / "s"))
    assert caught.value.exit_code == 3
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "s").exists()


def test_a_live_engine_keeps_its_socket(server: RunningServer) -> None:
    with pytest.raises(ListenError, match=f"pid {os.getpid()}"):
        open_listeners(StartSettings(port=0, socket=server.settings.socket))
    assert server.frame().health == "ok"


def test_the_socket_of_a_dead_engine_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "engine.sock"
    left_over = socket.socket(socket.AF_UNIX)
    left_over.bind(str(path))
    left_over.close()
    (tmp_path / "engine.sock.lock").write_text("999999\n")
    with open_listeners(StartSettings(port=0, socket=path)) as listeners:
        assert listeners.admin_path == path
    assert not path.exists()


def test_unusable_socket_paths_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not ours")
    for path in (tmp_path / ("x" * 120), tmp_path / "file" / "s", tmp_path / "file"):
        with pytest.raises(ListenError, match="--socket"):
            open_listeners(StartSettings(port=0, socket=path))
    assert (tmp_path / "file").read_text() == "not ours"


def test_con_19_shutdown_drains(tokenizer: Path, tmp_path: Path) -> None:
    with running(tokenizer, tmp_path, slots=1, queue=4) as server, ThreadPoolExecutor(4) as pool:
        server.runner.gate.clear()
        runs = pool.submit(server.chat, "say: finished", stream=True)
        server.until(lambda frame: frame.running == 1)
        waits = pool.submit(server.chat, "say: never", stream=True)
        refused_soon = pool.submit(server.chat, "say: never")
        server.until(lambda frame: frame.waiting_count == 2)
        with server.admin.stream("GET", "/admin/stream?rate=10") as frames:
            lines = frames.iter_lines()
            next(lines)
            assert server.admin.post("/admin/shutdown", json={"force": False}).status_code == 202
            server.until(lambda frame: frame.health == "draining")
            assert "error" in waits.result().text
            assert waits.result().text.endswith("data: [DONE]\n\n")
            assert refused_soon.result().status_code >= 500
            newcomer = server.chat("say: too late")
            assert newcomer.status_code == 503
            assert "retry-after" in newcomer.headers
            assert server.client.get("/health").json()["status"] == "draining"
            server.runner.gate.set()
            assert '"finish_reason": "stop"' in runs.result().text
            told = list(lines)  # the stream ends by itself
            last = Frame.model_validate_json(told[-1])
            assert last.running == 0
            counts = last.counters
            assert (counts.received, counts.finished, counts.rejected, counts.failed) == (4, 1, 3, 0)
            refusals = [event.text for line in told for event in Frame.model_validate_json(line).events]
            assert sum("refused: the server is shutting down" in text for text in refusals) == 3
        assert server.ended()
        assert server.exit_code == 0
        assert server.settings.socket is not None
        assert not server.settings.socket.exists()


def test_con_19_the_drain_timeout_cancels_what_still_runs(tokenizer: Path, tmp_path: Path) -> None:
    with running(tokenizer, tmp_path, drain_timeout=0.2) as server, ThreadPoolExecutor(1) as pool:
        server.runner.pace = 0.05
        runs = pool.submit(server.chat, "forever", stream=True)
        server.until(lambda frame: frame.running == 1)
        server.admin.post("/admin/shutdown")
        assert "before the answer was complete" in runs.result().text
        assert runs.result().text.endswith("data: [DONE]\n\n")
        assert server.ended()
        assert server.exit_code == 0


def test_con_19_a_dead_engine_is_not_waited_for(
    tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tokenizer, tmp_path, drain_timeout=600) as server, ThreadPoolExecutor(1) as pool:

        def broken(*_arguments: object) -> None:
            raise KeyError("injected")

        monkeypatch.setattr(server.engine._state.scheduler, "update_from_output", broken)
        assert pool.submit(server.chat, "forever").result().status_code == 500
        assert server.client.get("/health").status_code == 503
        assert server.engine.num_in_flight == 1
        server.admin.post("/admin/shutdown")
        assert server.ended()


def test_con_19_force_does_not_wait(tokenizer: Path, tmp_path: Path) -> None:
    with running(tokenizer, tmp_path, drain_timeout=600) as server, ThreadPoolExecutor(1) as pool:
        server.runner.pace = 0.05
        runs = pool.submit(server.chat, "forever")
        server.until(lambda frame: frame.running == 1)
        server.admin.post("/admin/shutdown", json={"force": False})
        server.until(lambda frame: frame.health == "draining")
        server.admin.post("/admin/shutdown", json={"force": True})
        assert runs.result().status_code == 500
        assert server.ended()
        assert server.exit_code == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_con_19_signals_end_the_process_with_0(tokenizer: Path, number: signal.Signals) -> None:
    """After the first signal a running stream goes on. The second one ends it with an error event."""
    program = Path(__file__).with_name("scripted_engine.py")
    with RealEngine(command=(str(program), str(tokenizer)), history_days=0) as engine:
        body = {"messages": [{"role": "user", "content": "forever"}], "stream": True}
        with httpx.stream("POST", engine.url + "/v1/chat/completions", json=body, timeout=20) as response:
            lines = response.iter_lines()
            next(line for line in lines if "content" in line)
            engine.process.send_signal(number)
            while httpx.get(engine.url + "/health").json()["status"] != "draining":
                pass
            next(line for line in lines if "content" in line)
            engine.process.send_signal(number)
            rest = [line for line in lines if line]
        assert "error" in rest[-2]
        assert rest[-1] == "data: [DONE]"
        assert engine.process.wait(20) == 0
        log = engine.log.read_text()
        assert f"slotdeck: serving {MODEL} on {engine.url}" in log
        assert log.endswith("slotdeck.server: stopped\n")


def test_measured_steps_are_listed_from_a_cursor_on(server: RunningServer) -> None:
    """They are the input of a calibration: work and seconds, without ids and text."""
    server.chat("say: hello")
    server.idle()
    told = server.admin.get("/admin/steps").json()
    samples = read_samples(told["steps"])
    assert told["cursor"] >= len(samples) > 1
    assert samples[0].work.prefill_tokens > 0
    assert all(sample.seconds >= 0 for sample in samples)
    assert server.admin.get(f"/admin/steps?after={told['cursor']}").json() == {"cursor": told["cursor"], "steps": []}
    assert server.admin.get("/admin/steps?after=x").status_code == 422


def test_flt_04_a_change_whose_client_left_is_withdrawn(tokenizer: Path, tmp_path: Path) -> None:
    with running(tokenizer, tmp_path) as server:
        server.runner.gate.clear()
        connection = server.raw_chat("forever", max_tokens=30)
        server.until(lambda frame: frame.running == 1)
        with pytest.raises(httpx.ReadTimeout):
            server.admin.patch("/admin/settings", json={"changes": {"kv_tokens": 4096}}, timeout=0.3)
        server.runner.gate.set()
        server.until(lambda frame: (frame.counters.finished or 0) + (frame.counters.cancelled or 0) == 1)
        frame = server.idle()
        assert (frame.pool.total, frame.limits.revision, frame.counters.pool_resizes) == (2048, 0, 0)
        connection.close()
