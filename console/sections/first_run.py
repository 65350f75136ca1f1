"""What to do with an engine that has not received a request yet."""

from __future__ import annotations

from slotdeck.console.drawing.cells import Line, Span, clean, exact
from slotdeck.engine.telemetry.frame import EngineInfo


def first_run_lines(engine: EngineInfo, width: int, *, can_load: bool) -> list[Line]:
    """The address for a chat client, and a request to paste into a shell."""
    url = clean(engine.url or "http://127.0.0.1:8000").rstrip("/")
    key = "-H 'Authorization: Bearer KEY' " if engine.keys_required else ""
    rows: list[list[Span]] = [
        [(" No requests yet. Point a chat client at this engine:", "text")],
        [
            ("   OpenAI base URL  ", "label"),
            (f"{url}/v1", "value"),
            ("   model  ", "label"),
            (clean(engine.model or ""), "value"),
        ],
        [(f"   curl {url}/v1/chat/completions \\", "label")],
        # At temperature 0 even a small model gives a sensible short answer.
        [(f'     {key}-d \'{{"temperature":0,"max_tokens":64,', "label")],
        [('       "messages":[{"role":"user","content":"Say hello"}]}\'', "label")],
    ]
    if can_load:
        rows.append([(" or press ", "text"), ("L", "key"), (": five simulated users chat with it.", "text")])
    return [exact(row, width) for row in rows]
