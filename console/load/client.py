"""Sends streamed chat requests to an OpenAI-compatible server and times them on the client's side.

TTFT is the time from sending the request to the first chunk with text. ITL is the gap between two chunks with text.
Comments, the role chunk and the usage chunk carry no text and count for neither.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx

from slotdeck.console.load.sse import EventParser

Message = dict[str, str]
LOOPBACK = ("127.0.0.1", "::1", "localhost")


class BusyError(RuntimeError):
    """The server answered 503. ``retry_after`` is in seconds, ``None`` if the server does not give it."""

    def __init__(self, message: str, retry_after: float | None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class RequestFailedError(RuntimeError):
    """The request got no complete answer. ``kind`` groups errors: ``http 400``, ``connection``, ``stream cut`` …"""

    def __init__(self, kind: str, message: str, *, status: int | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.status = status
        self.code = code


class UnreachableError(RequestFailedError):
    """The server cannot be reached."""


@dataclass(frozen=True)
class Endpoint:
    """Where requests go. ``url`` is the base without ``/v1``. ``context`` is in tokens, ``None`` if unknown."""

    url: str
    model: str
    api_key: str | None = None
    context: int | None = None

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}


@dataclass
class Completion:
    """The answer to one request. Times are in seconds on the monotonic clock; ``gaps`` are between chunks with text."""

    sent: float
    first: float | None = None
    last: float | None = None
    gaps: list[float] = field(default_factory=list)
    chunks: int = 0
    text: str = ""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    """Prompt tokens that the server found in its prefix cache."""
    finish_reason: str | None = None

    @property
    def ttft(self) -> float | None:
        return None if self.first is None else self.first - self.sent

    @property
    def generated(self) -> int:
        """Generated tokens as the server counts them, or else the number of chunks with text."""
        return self.chunks if self.completion_tokens is None else self.completion_tokens

    def add_text(self, text: str, now: float) -> None:
        """Add a piece of text that arrived at ``now``."""
        self.chunks += 1
        self.text += text
        if self.last is None:
            self.first = now
        else:
            self.gaps.append(now - self.last)
        self.last = now


def make_client(url: str, connections: int) -> httpx.AsyncClient:
    """A client that keeps its connections open. For loopback it ignores proxies from the environment."""
    return httpx.AsyncClient(
        timeout=httpx.Timeout(300.0, connect=5.0),
        limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections, keepalive_expiry=600),
        trust_env=urlsplit(url).hostname not in LOOPBACK,
    )


def base_url(url: str) -> str:
    """The base URL of a server, from ``host:8000``, ``http://host:8000/v1/`` or ``http://host:8000``."""
    with_scheme = url if "://" in url else f"http://{url}"
    return with_scheme.rstrip("/").removesuffix("/v1").rstrip("/")


async def discover(client: httpx.AsyncClient, url: str, api_key: str | None, model: str | None) -> Endpoint:
    """Ask ``/v1/models`` for the served model and its context. Raises RequestFailedError."""
    endpoint = Endpoint(url, model or "", api_key)
    try:
        response = await client.get(f"{url}/v1/models", headers=endpoint.headers)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise UnreachableError("connection", f"no server answers at {url} ({_reason(error)})") from error
    if response.status_code != 200:
        raise _refusal(response.status_code, response.content, f"{url}/v1/models")
    try:
        served = {str(row["id"]): row for row in response.json()["data"]}
    except (ValueError, KeyError, TypeError) as error:
        raise RequestFailedError("protocol", f"{url}/v1/models did not return a list of models") from error
    if not served or (model is not None and model not in served):
        raise RequestFailedError(
            "model", f"{url} serves {', '.join(served) or 'no model'}, but not {model or 'any model'}"
        )
    chosen = model or next(iter(served))
    row = served[chosen]
    context = next((row[name] for name in ("context_length", "max_model_len") if isinstance(row.get(name), int)), None)
    return Endpoint(url, chosen, api_key, context)


async def open_connections(client: httpx.AsyncClient, endpoint: Endpoint, count: int) -> None:
    """Open one connection for each user, so that TTFT does not include a handshake.

    Servers close idle connections after some seconds, so this is done before each stage.
    """

    async def touch() -> None:
        try:
            await client.get(f"{endpoint.url}/v1/models", headers=endpoint.headers)
        except httpx.HTTPError:
            pass  # The stage itself will count the error.

    await asyncio.gather(*(touch() for _ in range(count)))


async def chat(
    client: httpx.AsyncClient,
    endpoint: Endpoint,
    messages: list[Message],
    *,
    max_tokens: int,
    temperature: float,
    seed: int | None = None,
    extra: dict[str, Any] | None = None,
    on_text: Callable[[Completion], None] | None = None,
) -> Completion:
    """Send one request and read its stream to the end.

    ``on_text`` is called after each chunk with text. ``extra`` has further fields of the body. Raises BusyError,
    RequestFailedError or UnreachableError.
    """
    body: dict[str, Any] = {
        "model": endpoint.model,
        "messages": messages,
        "max_tokens": max_tokens,
        "temperature": temperature,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if seed is not None:
        body["seed"] = seed
    body |= extra or {}
    answer = Completion(sent=time.monotonic())
    request = client.stream("POST", f"{endpoint.url}/v1/chat/completions", json=body, headers=endpoint.headers)
    try:
        async with request as response:
            if response.status_code != 200:
                content = await response.aread()
                if response.status_code == 503:
                    raise BusyError("the server is full", _seconds(response.headers.get("Retry-After")))
                raise _refusal(response.status_code, content, "the request")
            await _read_stream(response.aiter_bytes(), answer, on_text)
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        raise UnreachableError("connection", _reason(error)) from error
    except httpx.HTTPError as error:
        raise RequestFailedError("stream cut" if answer.chunks else "connection", _reason(error)) from error
    return answer


async def _read_stream(
    chunks: AsyncIterator[bytes], answer: Completion, on_text: Callable[[Completion], None] | None
) -> None:
    parser = EventParser()
    done = False
    async for chunk in chunks:
        now = time.monotonic()
        try:
            events = parser.feed(chunk)
            done = done or "[DONE]" in events
            documents = [json.loads(event) for event in events if event != "[DONE]"]
        except ValueError as error:
            raise RequestFailedError("protocol", f"the stream contains an event that is not JSON: {error}") from error
        for document in documents:
            if _take(document, answer, now) and on_text is not None:
                on_text(answer)
    if not done and answer.finish_reason is None:
        raise RequestFailedError("stream cut", "the stream ended in the middle of the answer")


def _take(document: Any, answer: Completion, now: float) -> bool:
    """Add one event to the answer. Returns True if it carried text."""
    if not isinstance(document, dict):
        raise RequestFailedError("protocol", "an event of the stream is not a JSON object")
    if document.get("error"):
        error = document["error"]
        raise RequestFailedError("server", str(error.get("message") if isinstance(error, dict) else error))
    usage = document.get("usage")
    if isinstance(usage, dict):
        answer.prompt_tokens = usage.get("prompt_tokens", answer.prompt_tokens)
        answer.completion_tokens = usage.get("completion_tokens", answer.completion_tokens)
        details = usage.get("prompt_tokens_details")
        if isinstance(details, dict):
            answer.cached_tokens = details.get("cached_tokens")
    carried = False
    for choice in document.get("choices") or ():
        answer.finish_reason = choice.get("finish_reason") or answer.finish_reason
        delta = choice.get("delta") or {}
        thought = delta.get("reasoning_content") or delta.get("reasoning") or ""
        content = delta.get("content") or ""
        if not content and not thought:
            continue
        carried = True
        answer.add_text(content, now)
    return carried


def _refusal(status: int, content: bytes, what: str) -> RequestFailedError:
    message, code = None, None
    try:
        error = json.loads(content).get("error")
        message, code = (error.get("message"), error.get("code")) if isinstance(error, dict) else (error, None)
    except (ValueError, AttributeError):
        pass
    hint = "; pass the server's API key with --api-key" if status in (401, 403) else ""
    text = f"{what} was refused with HTTP {status}{f': {message}' if message else ''}{hint}"
    return RequestFailedError(f"http {status}", text, status=status, code=code if isinstance(code, str) else None)


def _seconds(value: str | None) -> float | None:
    try:
        return None if value is None else max(0.0, float(value))
    except ValueError:
        return None


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
