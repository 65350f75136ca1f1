"""What to do with an engine that nobody has asked anything yet."""

from __future__ import annotations

from slotdeck.console.drawing.cells import Line, Span, clean, exact
from slotdeck.engine.telemetry.frame import EngineInfo


def first_run_lines(engine: EngineInfo, cells: int, *, can_load: bool) -> list[Line]:
    """Where a chat client is pointed, and a request that can be pasted into a shell."""
    url = clean(engine.url or "http://127.0.0.1:8000").rstrip("/")
    key = "-H 'Authorization: Bearer KEY' " if engine.keys_required else ""
    rows: list[list[Span]] = [
        [(" Nobody has asked anything yet. Point a chat client at this engine:", "text")],
        [
            ("   OpenAI base URL  ", "label"),
            (f"{url}/v1", "value"),
            ("   model  ", "label"),
            (clean(engine.model or ""), "value"),
        ],
        [(f"   curl {url}/v1/chat/completions \\", "label")],
        # A short answer without chance is what a small model gives best.
        [(f'     {key}-d \'{{"temperature":0,"max_tokens":64,', "label")],
        [('       "messages":[{"role":"user","content":"Say hello"}]}\'', "label")],
    ]
    if can_load:
        rows.append([(" or press ", "text"), ("L", "key"), (": five simulated people come and chat with it.", "text")])
    return [exact(row, cells) for row in rows]
