"""The answer to a request without streaming: one JSON document in OpenAI's shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi.responses import JSONResponse

from slotdeck.engine.server.generation import Generation


async def complete(generation: Generation, model_id: str) -> JSONResponse:
    """Wait for all choices. Raises ApiError if one of them failed."""
    texts: dict[int, list[str]] = {index: [] for index in range(generation.chat.n)}
    logprobs: dict[int, list[Any]] = {index: [] for index in texts}
    reasons: dict[int, str | None] = {}
    async for delta in generation.deltas(None):
        if delta is not None:
            texts[delta.index].append(delta.text)
            logprobs[delta.index] += delta.logprobs
            reasons[delta.index] = delta.finish_reason
    return JSONResponse(
        {
            "id": generation.id,
            "object": "chat.completion",
            "created": generation.created,
            "model": model_id,
            "choices": [
                {
                    "index": index,
                    "message": {"role": "assistant", "content": "".join(text)},
                    "logprobs": logprobs_document(generation, logprobs[index]),
                    "finish_reason": reasons[index],
                }
                for index, text in texts.items()
            ],
            "usage": generation.usage(),
        }
    )


def logprobs_document(generation: Generation, entries: Sequence[Any]) -> dict[str, Any] | None:
    """The ``logprobs`` of a choice. None unless the request asked for them."""
    return None if generation.chat.sampling.top_logprobs is None else {"content": list(entries), "refusal": None}
