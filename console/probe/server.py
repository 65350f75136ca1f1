"""The tested server: which API it has, what it serves, and one request to it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx

from slotdeck.console.load.client import (
    BusyError,
    Completion,
    Endpoint,
    RequestFailedError,
    UnreachableError,
    chat,
    discover,
)


class TimeUpError(RuntimeError):
    """The time limit of the whole probe has passed."""


@dataclass(frozen=True)
class Server:
    """One server. ``native``: it only has Ollama's own API. ``deadline`` is a time of the monotonic clock."""

    client: httpx.AsyncClient
    endpoint: Endpoint
    deadline: float
    native: bool = False
    kind: str | None = None
    """The server's own name: ``slotdeck``, ``llamacpp``, ``vllm``, ``ollama``, …"""

    async def ask(self, prompt: str, most: int) -> Completion:
        """Ask for at most ``most`` tokens. Raises the exceptions of ``console.load.client.chat``, and TimeUpError."""
        messages = [{"role": "user", "content": prompt}]
        call = native_chat if self.native else chat
        try:
            async with asyncio.timeout(self.deadline - time.monotonic()):
                return await call(self.client, self.endpoint, messages, max_tokens=most, temperature=0)
        except TimeoutError as error:
            raise TimeUpError from error


async def find(client: httpx.AsyncClient, url: str, key: str | None, model: str | None, seconds: float) -> Server:
    """The server at ``url``. Raises RequestFailedError if none answers or if it does not serve the model."""
    deadline = time.monotonic() + seconds
    try:
        endpoint = await discover(client, url, key, model)
    except UnreachableError:
        raise
    except RequestFailedError as error:
        names = await _tags(client, url) if error.status == 404 else None
        if names is None:
            raise
        if not names or (model is not None and model not in names):
            raise RequestFailedError(
                "model", f"{url} has {', '.join(names) or 'no model'}, not {model or 'any'}"
            ) from None
        return Server(client, Endpoint(url, model or names[0], key), deadline, native=True, kind="ollama")
    rows = (await _get(client, f"{url}/v1/models", endpoint) or {}).get("data") or []
    row: dict[str, Any] = next((row for row in rows if row.get("id") == endpoint.model), {})
    kind = row.get("owned_by")
    if kind != "slotdeck" and await _get(client, f"{url}/api/version", endpoint) is not None:
        kind = "ollama"
    return Server(client, endpoint, deadline, kind=kind if isinstance(kind, str) else None)


async def told_context(server: Server) -> int | None:
    """The context of one request that the server reports, in tokens; ``None`` if it reports none."""
    client, endpoint = server.client, server.endpoint
    if server.kind == "ollama":  # Ollama reports it for loaded models.
        loaded = (await _get(client, f"{endpoint.url}/api/ps", endpoint) or {}).get("models") or []
        value = next((row.get("context_length") for row in loaded if row.get("name") == endpoint.model), None)
    elif server.kind == "llamacpp":
        props = await _get(client, f"{endpoint.url}/props", endpoint) or {}
        value = (props.get("default_generation_settings") or {}).get("n_ctx")
    else:
        value = endpoint.context
    return value if isinstance(value, int) and value > 0 else None


async def _tags(client: httpx.AsyncClient, url: str) -> list[str] | None:
    """Names of Ollama's models; ``None`` if the server is not Ollama."""
    document = await _get(client, f"{url}/api/tags", None)
    rows = document.get("models") if document is not None else None
    return None if rows is None else [str(row.get("name")) for row in rows]


async def _get(client: httpx.AsyncClient, url: str, endpoint: Endpoint | None) -> dict[str, Any] | None:
    """The JSON object at ``url``; ``None`` if there is none."""
    try:
        response = await client.get(url, headers={} if endpoint is None else endpoint.headers)
        document = response.json() if response.status_code == 200 else None
    except (httpx.HTTPError, ValueError):
        return None
    return document if isinstance(document, dict) else None


async def native_chat(
    client: httpx.AsyncClient,
    endpoint: Endpoint,
    messages: list[dict[str, str]],
    *,
    max_tokens: int,
    temperature: float,
) -> Completion:
    """One streamed request to Ollama's own ``/api/chat``, timed as :func:`slotdeck.console.load.client.chat` does."""
    options = {"num_predict": max_tokens, "temperature": temperature}
    body = {"model": endpoint.model, "messages": messages, "options": options, "stream": True}
    answer = Completion(sent=time.monotonic())
    try:
        async with client.stream("POST", f"{endpoint.url}/api/chat", json=body, headers=endpoint.headers) as response:
            if response.status_code == 503:
                raise BusyError("the server is full", None)
            if response.status_code != 200:
                said = (await response.aread()).decode("utf-8", "replace")[:200]
                status = response.status_code
                raise RequestFailedError(f"http {status}", f"refused with HTTP {status}: {said}", status=status)
            done = False
            async for line, now in _lines(response.aiter_bytes()):
                done = _take(json.loads(line), answer, now) or done
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        raise UnreachableError("connection", str(error) or type(error).__name__) from error
    except httpx.HTTPError as error:
        raise RequestFailedError("stream cut", str(error) or type(error).__name__) from error
    except ValueError as error:
        raise RequestFailedError("protocol", f"the stream is not made of JSON lines: {error}") from error
    if not done:
        raise RequestFailedError("stream cut", "the stream ended in mid-answer")
    return answer


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[tuple[bytes, float]]:
    """Lines and when they came."""
    rest = b""
    async for chunk in chunks:
        now = time.monotonic()
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            if line.strip():
                yield line, now


def _take(document: Any, answer: Completion, now: float) -> bool:
    """Fold one line into the answer; True for the last one."""
    if not isinstance(document, dict):
        raise ValueError("a line is not an object")
    if document.get("error"):
        raise RequestFailedError("server", str(document["error"]))
    message = document.get("message") or {}
    text = message.get("content") or ""
    if text or message.get("thinking"):
        answer.add_text(text, now)
    if document.get("done"):
        answer.prompt_tokens = document.get("prompt_eval_count")
        answer.completion_tokens = document.get("eval_count")
        answer.finish_reason = document.get("done_reason")
        return True
    return False
