"""Clients that leave, wait, read slowly or come in crowds, and steps that fail."""

from __future__ import annotations

import json
import logging
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import InternalServerError, OpenAI

from tests.support.stub_server import MODEL, RunningServer, running


@pytest.mark.parametrize("stream", [True, False])
def test_con_01_04_a_client_that_goes_away_frees_its_slot(server: RunningServer, stream: bool) -> None:
    server.runner.pace = 0.02
    try:
        before = server.frame().counters.cancelled or 0
        connection = server.raw_chat("forever", stream=stream)
        server.until(lambda frame: frame.slots[0].state == "decode")
        connection.close()
        frame = server.until(lambda frame: frame.running == 0)
        assert frame.pool.live == 0
        assert frame.counters.cancelled == before + 1
    finally:
        server.runner.pace = 0.0005


def test_con_02_a_client_that_leaves_during_prefill_is_never_decoded(server: RunningServer) -> None:
    server.runner.gate.clear()
    before = server.frame().counters
    connection = server.raw_chat("alpha beta " * 60, stream=True)
    server.until(lambda frame: frame.slots[0].state == "prefill")
    connection.close()
    server.until(lambda _: server.output_router.num_open == 0)  # the server has noticed while the step still runs
    server.runner.gate.set()
    after = server.idle().counters
    assert after.cancelled == (before.cancelled or 0) + 1
    assert after.generated_tokens == before.generated_tokens


def test_a_client_that_leaves_while_it_is_tokenized_never_enters_the_queue(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, release = threading.Event(), threading.Event()
    encode = server.text.encode_chat

    def slow(messages: Any) -> list[int]:
        entered.set()
        release.wait(15)
        return encode(messages)

    before = server.frame().counters
    monkeypatch.setattr(server.text, "encode_chat", slow)
    connection = server.raw_chat("say: hello")
    assert entered.wait(15)
    connection.close()
    after = server.until(lambda frame: frame.counters.cancelled == (before.cancelled or 0) + 1).counters
    release.set()
    assert (after.received, after.steps) == ((before.received or 0) + 1, before.steps)


def test_a_client_that_leaves_before_its_prompt_is_tokenized_is_never_tokenized(
    tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two prompts occupy the threads for short bodies. The client of the third leaves while it waits for a thread."""
    with running(tokenizer, tmp_path) as server, ThreadPoolExecutor(2) as pool:
        encode = server.text.encode_chat
        begun = threading.Semaphore(0)
        release = threading.Event()
        encoded: list[str] = []

        def slow(messages: Any) -> list[int]:
            encoded.append(messages[0]["content"])
            begun.release()
            release.wait(15)
            return encode(messages)

        monkeypatch.setattr(server.text, "encode_chat", slow)
        held = [pool.submit(server.chat, f"say: {name}") for name in ("first", "second")]
        for _ in held:
            assert begun.acquire(timeout=15)
        connection = server.raw_chat("say: third")
        server.until(lambda frame: frame.counters.received == 3)
        connection.close()
        server.until(lambda frame: frame.counters.cancelled == 1)
        release.set()
        assert [answer.result().status_code for answer in held] == [200, 200]
        assert server.chat("say: fourth").status_code == 200
        assert encoded == ["say: first", "say: second", "say: fourth"]
        assert server.output_router.num_open == 0
        server.idle()


def test_con_03_requests_whose_clients_leave_the_queue_are_never_computed(tokenizer: Path, tmp_path: Path) -> None:
    with running(tokenizer, tmp_path, slots=1, queue=4) as server:
        server.runner.gate.clear()
        running_one = server.raw_chat("forever", max_tokens=5)
        server.until(lambda frame: frame.running == 1)
        waiting = [server.raw_chat(f"say: queued {number}") for number in range(3)]
        server.until(lambda frame: frame.waiting_count == 3)
        waiting[0].close()
        waiting[2].close()
        frame = server.until(lambda frame: frame.waiting_count == 1)
        assert frame.counters.gave_up_waiting == 2
        server.runner.gate.set()
        server.until(lambda frame: frame.counters.finished == 2)
        assert [prompt for prompt in server.runner.seen if "queued" in prompt] == [
            prompt for prompt in server.runner.seen if "queued 1" in prompt
        ]
        server.idle()
        running_one.close()
        waiting[1].close()


def test_con_06_clients_that_leave_do_not_disturb_other_streams(server: RunningServer) -> None:
    expected = " ".join(["alpha beta gamma delta"] * 15)
    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(server.chat, f"say: {expected}") for _ in range(3)]
        for _ in range(8):
            connection = server.raw_chat("forever", stream=True)
            connection.recv(64)
            connection.close()
        for answer in answers:
            assert answer.result().json()["choices"][0]["message"]["content"] == expected


def test_con_11_12_13_one_runs_one_waits_the_rest_are_refused_at_once(tokenizer: Path, tmp_path: Path) -> None:
    with running(tokenizer, tmp_path, slots=1, queue=1) as server, ThreadPoolExecutor(6) as pool:
        server.runner.gate.clear()
        held = [pool.submit(server.chat, "say: served") for _ in range(2)]
        server.until(lambda frame: (frame.running, frame.waiting_count) == (1, 1))
        refused = list(pool.map(lambda _: server.chat("say: refused"), range(4)))  # all answered while the step is held
        for response in refused:
            assert response.status_code == 503
            assert 1 <= int(response.headers["retry-after"]) <= 40
            assert response.json()["error"]["code"] == "queue_full"
        server.runner.gate.set()
        assert [answer.result().status_code for answer in held] == [200, 200]
        counters = server.idle().counters
        assert (counters.received, counters.finished, counters.rejected) == (6, 2, 4)


def test_con_13_openai_client_sees_a_server_error(tokenizer: Path, tmp_path: Path) -> None:
    with running(tokenizer, tmp_path, slots=1, queue=0) as server:
        server.runner.gate.clear()
        connection = server.raw_chat("forever", max_tokens=2)
        server.until(lambda frame: frame.running == 1)
        client = OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
        messages: Any = [{"role": "user", "content": "hi"}]
        with pytest.raises(InternalServerError, match="queue is full") as caught:
            client.chat.completions.create(model=MODEL, messages=messages)
        assert caught.value.status_code == 503
        server.runner.gate.set()
        server.idle()
        connection.close()


def test_con_15_status_pages_answer_while_a_step_runs(server: RunningServer) -> None:
    server.runner.gate.clear()
    connection = server.raw_chat("forever", max_tokens=3)
    server.until(lambda frame: frame.running == 1)
    for path in ("/health", "/slots", "/metrics", "/v1/models"):
        assert server.client.get(path).status_code == 200
    assert server.admin.patch("/admin/settings", json={"changes": {"budget": 64}}).status_code == 200
    server.runner.gate.set()
    server.idle()
    connection.close()


def test_con_16_a_failed_step_is_an_error_and_the_engine_goes_on(
    server: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    response = server.chat("explode secret-prompt")
    assert response.status_code == 500
    assert response.json()["error"]["type"] == "server_error"
    stream = server.chat("explode secret-prompt", stream=True)
    error, done = [line for line in stream.text.split("\n\n") if line and not line.startswith(":")]
    assert "message" in json.loads(error.removeprefix("data: "))["error"]
    assert done == "data: [DONE]"
    assert "secret" not in response.text + stream.text
    assert server.chat("say: fine").json()["choices"][0]["message"]["content"] == "fine"


def test_con_16_a_dead_engine_turns_health_and_refuses(tokenizer: Path, tmp_path: Path) -> None:
    with running(tokenizer, tmp_path) as server:
        for _ in range(3):
            assert server.chat("explode").status_code == 500
        health = server.client.get("/health")
        assert health.status_code == 503
        assert health.json()["status"] == "fault"
        assert health.json()["reason"]
        refused = server.chat("say: hello")
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "engine_unavailable"
        assert "retry-after" in refused.headers
        server.idle()


def test_con_17_a_stream_goes_on_while_a_huge_prompt_is_tokenized(
    tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    huge = "".join(chr(0x61 + number % 26) + " " for number in range(1_900_000))  # 3.8 MB, some 2 million tokens
    with running(tokenizer, tmp_path, slots=1, context=1 << 20, queue=0) as server, ThreadPoolExecutor(1) as pool:
        encode = server.text.encode_chat
        tokenizing = threading.Event()
        calls: list[int] = []

        def noted(messages: Any) -> list[int]:
            tokenizing.set()
            try:
                ids = encode(messages)
                calls.append(len(ids))
                return ids
            finally:
                tokenizing.clear()

        server.runner.pace = 0.005
        body = {"messages": [{"role": "user", "content": "forever"}], "stream": True}
        with server.client.stream("POST", "/v1/chat/completions", json=body) as response:
            lines = response.iter_lines()
            next(lines)
            monkeypatch.setattr(server.text, "encode_chat", noted)
            other = pool.submit(httpx.post, server.url + "/v1/chat/completions", json={"messages": [
                {"role": "user", "content": huge}]}, timeout=60)  # fmt: skip
            meanwhile = 0
            for line in lines:
                meanwhile += tokenizing.is_set() and line.startswith("data: ")
                if other.done():
                    break
        assert other.result().json()["error"]["code"] == "context_length_exceeded"
        assert calls[0] > 1 << 20, "it was really tokenized"
        assert meanwhile >= 20


def test_a_client_that_does_not_read_is_dropped_and_others_are_served(tokenizer: Path, tmp_path: Path) -> None:
    with running(tokenizer, tmp_path, context=16384, kv_tokens=4 * 16384) as server:
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        connection.connect(("127.0.0.1", server.port))
        body = json.dumps({"messages": [{"role": "user", "content": "forever"}], "stream": True}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        server.runner.pace = 0
        connection.sendall(head.encode() + body)
        frame = server.until(lambda frame: (frame.counters.cancelled or 0) == 1)
        assert (frame.counters.generated_tokens or 0) < 16000
        assert server.chat("say: fine").json()["choices"][0]["message"]["content"] == "fine"
        received = b""
        while b"[DONE]" not in received and (data := connection.recv(65536)):
            received += data
        assert b"reads too slowly" in received
        server.idle()
        connection.close()


def test_admin_cancel_tells_the_client(server: RunningServer) -> None:
    server.runner.pace = 0.01
    try:
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(server.chat, "forever")
            frame = server.until(lambda frame: frame.slots[0].state == "decode")
            identity = frame.slots[0].request_id
            assert server.admin.post(f"/admin/requests/{identity}/cancel").json() == {"cancelled": True}
            response = answer.result()
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "request_cancelled"
        assert response.headers["x-should-retry"] == "false"
        assert server.admin.post(f"/admin/requests/{identity}/cancel").status_code == 404
    finally:
        server.runner.pace = 0.0005


def test_sec_06_no_prompt_text_in_logs(server: RunningServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    marker = "marker-4711"
    server.chat(f"say: {marker}")
    server.chat(f"say: {marker}", stream=True)
    server.chat(f"say: {marker}", temperature=9)
    server.chat("hi", model=marker)
    server.client.get(f"/{marker}?q={marker}")
    server.client.post("/v1/chat/completions", content=f"{{{marker}")
    connection = server.raw_chat(f"forever {marker}")
    server.until(lambda frame: frame.running == 1)
    connection.close()
    server.idle()
    pages = [server.client.get(path).text for path in ("/slots", "/metrics", "/health", "/v1/models")]
    ours = [record for record in caplog.records if record.name.startswith(("slotdeck", "uvicorn"))]
    logged = [record.getMessage() + str(record.exc_info or "") for record in ours]
    assert not [text for text in [*pages, *logged, server.frame().model_dump_json()] if marker in text]


def test_unexpected_errors_are_logged_without_their_message(
    server: RunningServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = "-".join(["marker", "4711"])

    def broken(messages: object) -> list[int]:
        raise KeyError(marker)

    monkeypatch.setattr(server.text, "encode_chat", broken)
    response = server.chat("say: hello")
    monkeypatch.undo()
    assert response.status_code == 500
    error = response.json()["error"]
    assert marker not in response.text + caplog.text
    identity = error["message"].split()[2].rstrip(";")
    assert f"error {identity}: KeyError" in caplog.text
    assert server.chat("say: hello").status_code == 200


def test_a_kept_alive_connection_serves_one_request_after_the_other(server: RunningServer) -> None:
    with httpx.Client(base_url=server.url, limits=httpx.Limits(max_connections=1)) as client:
        body = {"messages": [{"role": "user", "content": "say: x"}]}
        for stream in (True, False, True):
            response = client.post("/v1/chat/completions", json=body | {"stream": stream})
            assert response.status_code == 200
            assert '"content": "x"' in response.text.replace('":"', '": "')
