"""If a step never returns, all clients get an error, and the process ends so that its supervisor restarts it."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.support.real_engine import PATIENCE, RealEngine

LONG = {"max_tokens": 4000, "ignore_eos": True, "temperature": 0}


def ask(url: str, stream: bool) -> tuple[int, str]:
    body = {"messages": [{"role": "user", "content": "Count to a thousand."}], "stream": stream} | LONG
    response = httpx.post(url + "/v1/chat/completions", json=body, timeout=PATIENCE)
    return response.status_code, response.text


@pytest.mark.model
def test_con_16_a_wedged_step_fails_all_requests_and_ends_the_process(tmp_path: Path) -> None:
    script, wedge = Path(__file__).with_name("wedging_engine.py"), tmp_path / "wedge"
    with (
        RealEngine(command=(str(script), "serve", str(wedge)), slots=2, context=4096, step_timeout=3) as engine,
        ThreadPoolExecutor(3) as pool,
    ):
        runs = [pool.submit(ask, engine.url, stream) for stream in (True, False)]
        engine.wait_for(lambda frame: sum(slot.state == "decode" for slot in frame.slots) == 2)
        waits = pool.submit(ask, engine.url, False)
        engine.wait_for(lambda frame: frame.waiting_count == 1)
        wedge.touch()

        deadline = time.monotonic() + PATIENCE
        while (health := httpx.get(engine.url + "/health", timeout=PATIENCE)).status_code == 200:
            assert time.monotonic() < deadline
        assert health.status_code == 503
        assert health.json()["status"] == "fault"
        assert "a step has not returned" in health.json()["reason"]

        streamed, answered, waited = (request.result(PATIENCE) for request in (*runs, waits))
        assert streamed[0] == 200
        assert "the engine has stopped responding" in streamed[1]
        assert streamed[1].endswith("data: [DONE]\n\n")
        for status, text in (answered, waited):
            assert status in (500, 503)
            assert "the engine has stopped responding" in text
        assert engine.process.wait(PATIENCE) == 70

        log = engine.log.read_text()
        assert "stacks of all threads follow" in log
        assert "wedging_engine.py" in log, "the stack names the line that hangs"
        assert "ending the process: a step has not returned for 3 s" in log
