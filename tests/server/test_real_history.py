"""A real headless engine records its history without any text of prompts (SEC-06)."""

from __future__ import annotations

import time

import httpx
import pytest

from slotdeck.engine.telemetry.history.reader import History, HistoryError
from tests.support.real_engine import PATIENCE, RealEngine

pytestmark = pytest.mark.model
MARKER = "zanzibar-marker-4711"
FOREVER = 4e9


def recorded(history: History) -> dict[str, int]:
    try:
        return history.counts()
    except HistoryError:
        return {"requests": 0, "frames": 0, "events": 0}


def ask(engine: RealEngine, text: str) -> int:
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 8}
    return httpx.post(f"{engine.url}/v1/chat/completions", json=body, timeout=PATIENCE).status_code


def test_sec_06_history_of_a_headless_engine_holds_numbers_and_no_prompt() -> None:
    with RealEngine(slots=2, context=256) as engine:
        history = History(engine.folder / "slotdeck" / "history.db")
        assert ask(engine, f"Say {MARKER} please.") == 200
        assert ask(engine, f"{MARKER} " * 400) == 400
        assert engine.change(slots=3).status_code == 200
        deadline = time.monotonic() + PATIENCE
        while recorded(history)["requests"] < 1:
            assert time.monotonic() < deadline
            time.sleep(0.1)  # nothing to await: another process writes
        (request,) = history.requests(0, FOREVER)
        assert (request.outcome, request.user, request.output_tokens) == ("finished", "127.0.0.1", 8)
        events = history.events(0, FOREVER)
        assert {"admitted", "first_token", "finished", "too_long", "setting_changed"} <= {e.kind for e in events}
        frames = list(history.frames(0, FOREVER))
        assert frames[-1].engine.model == engine.frame().engine.model
        text = "".join(frame.model_dump_json() for frame in frames) + "".join(event.text for event in events)
        assert MARKER not in text
        for file in history.path.parent.iterdir():
            assert MARKER.encode() not in file.read_bytes()
