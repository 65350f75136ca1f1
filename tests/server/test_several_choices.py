"""Several choices in one request (``n``): places in the queue, indices, usage and ends."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from tests.support.stub_server import MODEL, RunningServer, billed, events, running


def test_n_choices_in_one_document(server: RunningServer) -> None:
    one = server.chat("say: hello").json()["usage"]
    answer = server.chat("say: hello", n=3, logprobs=True).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert [choice["message"]["content"] for choice in answer["choices"]] == ["hello"] * 3
    assert [choice["finish_reason"] for choice in answer["choices"]] == ["stop"] * 3
    assert all(choice["logprobs"]["content"] for choice in answer["choices"])
    usage = answer["usage"]
    assert usage["prompt_tokens"] == one["prompt_tokens"]  # counted once, whatever n is
    assert usage["completion_tokens"] == 3 * one["completion_tokens"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def test_req_23_each_chunk_names_its_choice(server: RunningServer) -> None:
    chunks = events(server.chat("say: alpha beta gamma", n=3, stream=True, stream_options={"include_usage": True}))
    *chunks, last = chunks
    assert last["choices"] == []
    assert billed(last["usage"]) == billed(server.chat("say: alpha beta gamma", n=3).json()["usage"])
    texts: dict[int, str] = defaultdict(str)
    roles: list[int] = []
    reasons: dict[int, str] = {}
    for chunk in chunks:
        assert chunk["id"] == chunks[0]["id"]
        (choice,) = chunk["choices"]
        index = choice["index"]
        assert index not in reasons, "something came after the end"
        texts[index] += choice["delta"].get("content") or ""
        if "role" in choice["delta"]:
            roles.append(index)
        if choice["finish_reason"]:
            reasons[index] = choice["finish_reason"]
    assert texts == dict.fromkeys(range(3), "alpha beta gamma")
    assert sorted(roles) == [0, 1, 2]
    assert reasons == dict.fromkeys(range(3), "stop")


def test_each_choice_has_its_own_seed(server: RunningServer) -> None:
    for seed, wanted in ((7, [7, 8, 9]), (2**63 - 1, [2**63 - 1, 0, 1])):
        server.chat(n=3, seed=seed)
        assert sorted(params.seed for params in server.runner.params[-3:]) == sorted(wanted)


@pytest.mark.parametrize("stream", [True, False])
def test_req_23_a_client_that_leaves_ends_all_its_choices(server: RunningServer, stream: bool) -> None:
    server.runner.pace = 0.02
    try:
        before = server.frame().counters.cancelled or 0
        connection = server.raw_chat("forever", stream=stream, n=3)
        server.until(lambda frame: sum(slot.state == "decode" for slot in frame.slots) == 3)
        connection.close()
        frame = server.until(lambda frame: frame.running == 0)
        assert frame.pool.live == 0
        assert frame.counters.cancelled == before + 3
    finally:
        server.runner.pace = 0.0005


def test_a_stop_string_ends_each_choice_in_the_engine_too(server: RunningServer) -> None:
    before = server.frame().counters
    answer = server.chat("forever", stop=["la la la"], max_tokens=400, n=3).json()
    assert [choice["finish_reason"] for choice in answer["choices"]] == ["stop"] * 3
    after = server.idle().counters
    assert after.finished == (before.finished or 0) + 3
    assert (after.generated_tokens or 0) - (before.generated_tokens or 0) < 60


def test_req_06_con_14_n_counts_n_and_is_refused_as_a_whole(tokenizer: Path, tmp_path: Path) -> None:
    with running(tokenizer, tmp_path, slots=1, queue=2) as server:
        server.runner.gate.clear()
        connection = server.raw_chat("forever", max_tokens=2)
        server.until(lambda frame: frame.running == 1)
        refused = server.chat(n=3)
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "queue_full"
        frame = server.frame()
        assert frame.waiting_count == 0
        assert frame.counters.rejected == 3
        server.runner.gate.set()
        assert len(server.chat(n=2, max_tokens=2).json()["choices"]) == 2
        server.idle()
        connection.close()


def test_more_choices_than_the_queue_holds_are_a_400(tokenizer: Path, tmp_path: Path) -> None:
    with running(tokenizer, tmp_path, slots=4, queue=1) as server:
        error = server.chat(n=3).json()["error"]
        assert (error["param"], error["type"]) == ("n", "invalid_request_error")
        assert "at most 2" in error["message"]
        assert server.chat(n=2).status_code == 200
        assert server.idle().counters.invalid == 1


def test_the_prompt_is_computed_once_for_all_choices(server: RunningServer) -> None:
    prompt = "say: " + "alpha beta gamma delta " * 12
    before = server.frame().counters.prompt_tokens or 0
    answer = server.chat(prompt, n=4, max_tokens=4).json()
    computed = (server.idle().counters.prompt_tokens or 0) - before
    assert computed <= answer["usage"]["prompt_tokens"] + 3 * 16  # the rest of the last block, for each of the others


def test_a_failed_step_ends_the_whole_call(server: RunningServer) -> None:
    assert server.chat("explode", n=2).status_code == 500
    server.idle()
    assert len(server.chat("say: fine", n=2).json()["choices"]) == 2


def test_openai_client_gets_several_choices(server: RunningServer) -> None:
    client = OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
    messages: Any = [{"role": "user", "content": "say: hi there"}]
    answer = client.chat.completions.create(model=MODEL, messages=messages, n=4)
    assert [choice.message.content for choice in answer.choices] == ["hi there"] * 4


def test_one_user_who_fills_their_share_of_the_queue_gets_a_503_that_says_so(tokenizer: Path, tmp_path: Path) -> None:
    with running(tokenizer, tmp_path, slots=1, queue=4, queue_share=50) as server:
        server.runner.gate.clear()
        connections = [server.raw_chat("forever", max_tokens=2)]
        server.until(lambda frame: frame.running == 1)
        connections += [server.raw_chat("forever", max_tokens=2) for _ in range(2)]
        server.until(lambda frame: frame.waiting_count == 2)
        refused = server.chat()
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 1
        assert "your share of the queue is full: 2 of your requests are waiting" in refused.json()["error"]["message"]
        assert server.chat(n=4).status_code == 400
        server.runner.gate.set()
        server.idle()
        for connection in connections:
            connection.close()
